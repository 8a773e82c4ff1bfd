"""A notebook's outputs as plain HTML: what marimo's scripts would draw in a browser, drawn beforehand.

marimo's own export needs its scripts from a server, and shows an empty page where there is none. The course uses few of
its elements, so each has a plain equivalent here: an accordion is `<details>`, a callout `<aside>`, a formula MathML, a
widget a line with its label and its value.
"""

import html
import json
import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import marimo
from latex2mathml.converter import convert as mathml
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

__all__ = ["CODE_STYLE", "Cell", "cells_of", "plain", "python"]

CODE_STYLE = (
    HtmlFormatter(style="default").get_style_defs("pre")
    + "@media(prefers-color-scheme:dark){"
    + HtmlFormatter(style="github-dark").get_style_defs("pre")
    + "}"
)


@dataclass(frozen=True)
class Cell:
    """A cell that was run: its code, whether the reader sees it, and what it showed (HTML, or None for nothing)."""

    code: str
    hidden: bool
    output: str | None


def cells_of(path: Path) -> list[Cell]:
    """Run a notebook in this process.

    Returns:
        Its cells in order. The first holds the imports and shows nothing.

    Raises:
        RuntimeError: a cell was cancelled, which would leave it empty in the editor.
        Exception: whatever a cell raises.
    """
    app = runpy.run_path(str(path))["app"]
    outputs, _ = app.run()
    first, *others = (cell._cell for cell in app._cell_manager.cells() if cell is not None)
    if len(others) != len(outputs):
        raise RuntimeError(f"{len(others)} cells of {path.name} gave {len(outputs)} outputs: one was cancelled.")
    shown = [None if output is None else marimo.as_html(output).text for output in outputs]
    return [Cell(first.code, first.config.hide_code, None)] + [
        Cell(cell.code, cell.config.hide_code, text) for cell, text in zip(others, shown)
    ]


def python(code: str) -> str:
    """Python source as highlighted HTML."""
    return highlight(code.strip("\n"), PythonLexer(), HtmlFormatter(nowrap=False, cssclass="code"))


def plain(text: str) -> str:
    """HTML as marimo makes it → HTML that any browser shows without scripts.

    Raises:
        ValueError: an element of marimo's that has no plain equivalent here yet.
    """
    parser = _Plain()
    parser.feed(text)
    parser.close()
    return parser.frames[0].text


class _Frame:
    """An open element of marimo's: its attributes, and what it holds so far."""

    def __init__(self, tag: str = "", attributes: dict | None = None):
        self.tag, self.attributes, self.parts = tag, attributes or {}, []

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def data(self, name: str):
        """An attribute that marimo wrote as JSON; None if it is not there."""
        return json.loads(self.attributes.get(f"data-{name}") or "null")


class _Plain(HTMLParser):
    """Copies HTML, and replaces every element whose name begins with marimo-."""

    def __init__(self):
        super().__init__(convert_charrefs=False)
        self.frames = [_Frame()]

    def handle_starttag(self, tag, attributes):
        if tag.startswith("marimo-"):
            self.frames.append(_Frame(tag, dict(attributes)))
        else:
            self._copy(self.get_starttag_text())

    def handle_startendtag(self, tag, attributes):
        self._copy(self.get_starttag_text())

    def handle_endtag(self, tag):
        if tag.startswith("marimo-"):
            frame = self.frames.pop()
            draw = DRAW.get(tag.removeprefix("marimo-"))
            if draw is None:
                raise ValueError(f"a lab shows <{tag}>, for which the reading edition has no plain form yet.")
            self._copy(draw(frame))
        else:
            self._copy(f"</{tag}>")

    def handle_data(self, data):
        self._copy(data)

    def handle_entityref(self, name):
        self._copy(f"&{name};")

    def handle_charref(self, name):
        self._copy(f"&#{name};")

    def handle_comment(self, data):
        pass

    def _copy(self, text: str) -> None:
        self.frames[-1].parts.append(text)


def _formula(frame: _Frame) -> str:
    """`||(inline||)` or `||[on a line of its own||]`."""
    text = html.unescape(frame.text).strip()
    block = text.startswith("||[")
    tex = re.sub(r"^\|\|[(\[]+|\|\|[)\]]+$", "", text).strip()
    return mathml(tex.replace("||(", "").replace("||)", ""), display="block" if block else "inline")


def _accordion(frame: _Frame) -> str:
    """`<details>` for each part; what only a click computes has nothing to show on paper."""
    parts = _children(frame.text)
    return "".join(
        f"<details><summary>{_inline(label)}</summary>{part}</details>"
        for label, part in zip(frame.data("labels"), parts)
        if re.sub(r"<[^>]*>", "", part).strip() or "<img" in part
    )


def _children(text: str) -> list[str]:
    """The contents of the top-level `<div>`s of a text, in order."""
    found, depth, begin = [], 0, 0
    for match in re.finditer(r"<(/?)div\b[^>]*>", text):
        if not match[1]:
            depth += 1
            begin = match.end() if depth == 1 else begin
        else:
            depth -= 1
            if depth == 0:
                found.append(text[begin : match.start()])
    return found


def _callout(frame: _Frame) -> str:
    return f'<aside class="{html.escape(frame.data("kind") or "neutral")}">{plain(frame.data("html"))}</aside>'


def _inline(label: str | None) -> str:
    return plain(label or "").strip()


def _widget(value: Callable[[_Frame], str]) -> Callable[[_Frame], str]:
    def draw(frame: _Frame) -> str:
        label, now = _inline(frame.data("label")), html.escape(value(frame))
        return f'<span class="widget">{label}{": " if label and now else ""}<b>{now}</b></span>'

    return draw


def _slider(frame: _Frame) -> str:
    steps, at = frame.data("steps"), frame.data("initial-value")
    return str(steps[int(at)] if steps else at)


def _choices(frame: _Frame) -> str:
    """Every choice, the ones that are made marked by more than a colour."""
    chosen = frame.data("initial-value")
    chosen = chosen if isinstance(chosen, list) else [chosen]
    return " · ".join(f"▸ {option}" if option in chosen else str(option) for option in frame.data("options"))


def _question(frame: _Frame) -> str:
    options = "".join(f"<li>{html.escape(str(option))}</li>" for option in frame.data("options"))
    return f'<div class="widget">{_inline(frame.data("label"))}<ul>{options}</ul></div>'


DRAW: dict[str, Callable[[_Frame], str]] = {
    "ui-element": lambda frame: frame.text,
    "tex": _formula,
    "accordion": _accordion,
    "callout-output": _callout,
    "json-output": lambda frame: f"<pre>{html.escape(json.dumps(frame.data('json-data'), indent=1))}</pre>",
    "lazy": lambda frame: "",
    "slider": _widget(_slider),
    "dropdown": _widget(_choices),
    "multiselect": _widget(_choices),
    "radio": _question,
    "checkbox": _widget(lambda frame: "yes" if frame.data("initial-value") else "no"),
    "text": _widget(lambda frame: str(frame.data("initial-value"))),
    "button": _widget(lambda frame: "(a button of the notebook)"),
}
