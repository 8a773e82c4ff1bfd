"""A module's text with every commutative operation outside tagged places turned round: the same values, another text."""

import ast

from checks.core.places import places

SYMBOLS = {ast.Add: "+", ast.Mult: "*", ast.BitAnd: "&", ast.BitOr: "|"}
NOT_NUMBERS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.Slice)


def commuted(text: str) -> str:
    """`a + b` becomes `(b) + (a)`; lists, tuples and strings, whose sum has an order, stay as they are."""
    tagged = [place for name, place in places(text).items() if "." in name]
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def turned(node: ast.AST) -> str:
        """A node's text, operations inside it turned round."""
        begin, end = at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)
        if isinstance(node, ast.BinOp) and type(node.op) in SYMBOLS and not _ordered(node):
            return f"(({turned(node.right)}) {SYMBOLS[type(node.op)]} ({turned(node.left)}))"
        pieces, here = [], begin
        for child in sorted(_expressions(node), key=lambda one: at(one.lineno, one.col_offset)):
            first = at(child.lineno, child.col_offset)
            if first < here or isinstance(child, ast.JoinedStr):
                continue
            pieces += [text[here:first], turned(child)]
            here = at(child.end_lineno, child.end_col_offset)
        return "".join([*pieces, text[here:end]])

    result, here = [], 0
    for node in ast.walk(ast.parse(text)):
        inside = isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.For, ast.If, ast.With, ast.While))
        for statement in [*node.body, *getattr(node, "orelse", [])] if inside else []:
            simple = isinstance(statement, (ast.Assign, ast.AugAssign, ast.Return, ast.Expr))
            if simple and not any(place.first <= statement.lineno <= place.head for place in tagged):
                begin = at(statement.lineno, statement.col_offset)
                result.append((begin, at(statement.end_lineno, statement.end_col_offset), turned(statement)))
    pieces = []
    for begin, end, new in sorted(result):
        pieces += [text[here:begin], new]
        here = end
    return "".join([*pieces, text[here:]])


def _expressions(node: ast.AST):
    """The nearest expressions below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and hasattr(child, "lineno"):
            yield child
        else:
            yield from _expressions(child)


def _ordered(node: ast.BinOp) -> bool:
    """Whether a sum may be one of texts or sequences."""
    return any(
        isinstance(side, NOT_NUMBERS)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        or (isinstance(side, ast.Subscript) and isinstance(side.slice, ast.Slice))
        or (isinstance(side, ast.BinOp) and _ordered(side))
        for side in (node.left, node.right)
    )
