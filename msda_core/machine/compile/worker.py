"""The compiling child of `lower`: a process in which Triton is not in interpreter mode.

Started as a script, so it imports nothing of this package. It reads requests and writes answers, each a JSON object
behind its length (8 bytes, little-endian), on its standard streams. Functions arrive as source with their line
numbers, so what the compiler says is about the author's file and lines.
"""

import ast
import importlib
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import types


def main():
    inbox = os.fdopen(os.dup(0), "rb")
    outbox = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = tempfile.TemporaryFile()
    os.dup2(log.fileno(), 1)  # MLIR and ptxas print; nothing of it may reach the channel
    os.dup2(log.fileno(), 2)
    try:
        import triton

        hello = {"triton": triton.__version__, "python": sys.version.split()[0]}
        triton.knobs.runtime.add_stages_inspection_hook = stop_at_ptx
    except BaseException as error:  # whatever a broken installation raises
        hello = {"error": f"{type(error).__name__}: {error}"}
    send(outbox, hello)
    while (request := receive(inbox)) is not None:
        log.seek(0)
        log.truncate()
        try:
            answer = compile_kernel(request) if request["do"] == "compile" else assemble(request)
        except BaseException as error:
            answer = describe(error, request)
        sys.stdout.flush()
        sys.stderr.flush()
        log.seek(0)
        answer["log"] = log.read().decode(errors="replace")
        if "error" in answer and not answer.get("lineno"):
            locate_in_log(answer, request)
        send(outbox, answer)


def send(stream, message):
    """Write a message: its length, eight bytes, and JSON."""
    data = json.dumps(message).encode()
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream):
    """Read a message, or None at the end of the stream."""
    head = stream.read(8)
    return json.loads(stream.read(int.from_bytes(head, "little"))) if len(head) == 8 else None


def stop_at_ptx(backend=None, stages=None, options=None, language=None, capability=None):
    """Leave the assembler out: most questions need only the PTX. Salts the cache key where Triton asks for one."""
    if stages is not None and "cubin" in stages:
        stages["cubin"] = lambda ptx, metadata: b"-"
    return "paper-gpu", "paper-gpu"


# --- Functions from their source --------------------------------------------------------------------------------------


class Builder:
    """Rebuilds jit functions and the globals they read."""

    def __init__(self, request):
        self.request = request
        self.built = {}
        texts = {}
        for f in request["functions"]:
            lines = texts.setdefault(f["file"], [])
            body = f["source"].splitlines()
            lines.extend([""] * (f["lineno"] - 1 + len(body) - len(lines)))
            lines[f["lineno"] - 1 : f["lineno"] - 1 + len(body)] = body
        for file, lines in texts.items():
            text = [line + "\n" for line in lines]
            linecache.cache[file] = (sum(map(len, text)), None, text, file)

    def function(self, index):
        """Function number `index` of the request, compiled from its source, with the functions that it calls."""
        if index not in self.built:
            import triton

            f = self.request["functions"][index]
            source = "\n" * (f["lineno"] - 1) + f["source"]
            scope = {"__name__": f["module"], "__builtins__": __builtins__}
            code = compile(source, f["file"], "exec", flags=f["flags"], dont_inherit=True)
            holder = {}
            for name, value in f["types"].items():  # annotations and defaults are evaluated by the definition
                scope[name] = self.value(value)
            exec(code, scope, holder)
            fn = holder[f["name"]]
            if f["defaults"] is not None:
                fn.__defaults__ = tuple(self.value(v) for v in f["defaults"])
            wrap = triton.constexpr_function if f["kind"] == "constexpr_function" else triton.jit
            self.built[index] = wrap(fn, **f["options"]) if f["options"] else wrap(fn)
            for name, value in f["globals"].items():
                scope[name] = self.value(value)
        return self.built[index]

    def value(self, encoded):
        """A constant of the kernel's, decoded."""
        import triton.language as tl

        if not isinstance(encoded, dict):
            return encoded
        ((kind, v),) = encoded.items()
        if kind == "function":
            return self.function(v)
        if kind == "tuple":
            return tuple(self.value(item) for item in v)
        if kind == "list":
            return [self.value(item) for item in v]
        if kind == "constexpr":
            return tl.constexpr(self.value(v))
        if kind == "float":
            return float(v)
        if kind == "dtype":
            return tl.dtype(v)
        if kind == "module":
            return importlib.import_module(v)
        if kind == "import":
            value = importlib.import_module(v[0])
            for name in v[1].split("."):
                value = getattr(value, name)
            return value
        if kind == "namespace":
            module = types.ModuleType(v["name"])
            for name, item in v["items"].items():
                setattr(module, name, self.value(item))
            return module
        if kind == "python":  # something the compiler must refuse itself
            return type(v, (), {})()
        raise ValueError(f"unknown encoding {kind}")


def paths(value):
    """JSON has no tuples: give the types of tuple arguments theirs back."""
    return tuple(paths(v) for v in value) if isinstance(value, list) else value


class Target:
    """Stands for the driver of the GPU that is compiled for: kernels ask it for their target."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_target(self):
        """The target, as Triton's own drivers give it."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


def compile_kernel(request):
    """Compile what the request describes, and answer with its assembly."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    triton.runtime.driver.set_active(Target(request["target"]))
    builder = Builder(request)
    kernel = builder.function(0)
    source = ASTSource(
        kernel,
        signature={k: paths(v) for k, v in request["signature"].items()},
        constexprs={tuple(k): builder.value(v) for k, v in request["constants"]},
        attrs={tuple(k): [list(a) for a in v] for k, v in request["attrs"]},
    )
    target = GPUTarget("cuda", request["target"], 32)
    compiled = triton.compile(source, target=target, options=request["options"])
    keep = ("num_warps", "num_ctas", "num_stages", "shared", "name", "target", "ptx_version", "maxnreg")
    metadata = {k: getattr(compiled.metadata, k, None) for k in keep}
    metadata["target"] = request["target"]
    return {"ttgir": compiled.asm["ttgir"], "ptx": compiled.asm["ptx"], "metadata": metadata}


def assemble(request):
    """PTX to machine code: registers, spills and SASS."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend

    backend = CUDABackend(GPUTarget("cuda", request["target"], 32))
    options = backend.parse_options(dict(request["options"]))
    triton.knobs.nvidia.dump_ptxas_log = True
    cubin = backend.make_cubin(request["ptx"], {}, options, request["target"])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.nvdisasm.path
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True)
    return {"sass": done.stdout}


# --- Errors at the author's line --------------------------------------------------------------------------------------


def describe(error, request):
    """The innermost compilation error of a chain: its reason, and the author's line."""
    chain, seen = [], error
    while seen is not None:
        chain.append(seen)
        seen = seen.__cause__ or seen.__context__
    answer = {"error": f"{type(error).__name__}: {error}", "kind": type(chain[-1]).__name__, "lineno": 0, "file": ""}
    if any(isinstance(e, RecursionError) for e in chain):
        answer["error"] = "A function calls itself, and the compiler cannot inline a function into itself."
        answer["kind"] = "RecursionError"
    for e in reversed(chain):
        node, source = getattr(e, "node", None), getattr(e, "src", None)
        if isinstance(node, ast.AST) and hasattr(node, "lineno"):
            for f in request.get("functions", ()):
                if isinstance(source, str) and source.strip() == f["source"].strip():
                    answer["lineno"], answer["file"] = f["lineno"] + node.lineno - 1, f["file"]
            if answer["kind"] != "RecursionError":
                reason = getattr(e, "error_message", None) or next(
                    (str(c) for c in reversed(chain) if not hasattr(c, "node") and str(c)), str(e)
                )
                answer["error"] = reason
            break
    foreign = re.search(r"Unsupported function referenced: <[\w-]+ '?([\w.]+)", answer["error"])
    if foreign and not answer["lineno"]:  # found before the compiler starts, so it names no line
        name = foreign[1].split(".")[-1]
        answer["error"] = (
            f"{name} is no Triton function: a kernel can call only triton.language and @triton.jit functions."
        )
        for f in request.get("functions", ()):
            for offset, line in enumerate(f["source"].splitlines()):
                if re.search(rf"\b{name}\s*\(", line) and not line.startswith("def ") and not answer["lineno"]:
                    answer["lineno"], answer["file"] = f["lineno"] + offset, f["file"]
    return answer


def locate_in_log(answer, request):
    """Passes report to the log, as `file:line:column: error: ...`."""
    for f in request.get("functions", ()):
        hit = re.search(re.escape(f["file"]) + r'"?:(\d+):\d+\)?: error: (.*)', answer["log"])
        if hit:
            answer["lineno"], answer["file"] = int(hit[1]), f["file"]
            answer["error"] = hit[2]
            return


if __name__ == "__main__":
    main()
