"""What the real compiler makes of a kernel: IR with layouts, PTX, SASS, registers; for any GPU, on any machine.

The interpreter cannot compile in its own process, so a child compiles, from source that is shipped to it. The child
stays warm and answers are kept, so asking again costs next to nothing.
"""

import ast
import atexit
import contextlib
import functools
import hashlib
import inspect
import json
import linecache
import os
import queue
import re
import struct
import subprocess
import sys
import tempfile
import threading
import types
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from msda_core.device import load_triton
from msda_core.machine import errors
from msda_core.machine.compile.binding import Bound, bind_instructions
from msda_core.machine.compile.ptx import Instruction, instructions
from msda_core.machine.compile.ttgir import MemoryOp, memory_ops
from msda_core.machine.launch import Launch, bind
from msda_core.machine.source import capture_scope, free_names, function_source

__all__ = ["TARGETS", "Lowering", "lower", "warm"]

#: Compute capabilities that can be compiled for, with the GPUs they stand for.
TARGETS = {
    75: "Turing (T4, RTX 20)",
    80: "Ampere (A100, A30)",
    86: "Ampere (A10, RTX 30)",
    87: "Orin",
    89: "Ada (L4, L40S, RTX 40)",
    90: "Hopper (H100, H200)",
    100: "Blackwell (B200)",
    103: "Blackwell (B300)",
    120: "Blackwell (RTX 50)",
}
TIMEOUT = 120.0  # seconds for one compilation, after which the child is replaced
_CACHE_SIZE = 256


def parse_target(target) -> int:
    """Compute capability, as a number: 90 of "sm_90", "sm_90a", "9.0", "cuda:90", 90 or (9, 0).

    Raises:
        LaunchError: there is no such target.
    """
    digits = target
    if isinstance(target, tuple) and len(target) == 2:
        digits = f"{target[0]}{target[1]}"
    digits = re.sub(r"^(sm_?|cuda:|compute_)", "", str(digits).strip().lower()).replace(".", "").rstrip("af")
    if not digits.isdigit() or int(digits) not in TARGETS:
        known = ", ".join(f"sm_{cc} {name}" for cc, name in TARGETS.items())
        raise errors.LaunchError(f"There is no target {target!r}. Known: {known}.")
    return int(digits)


@dataclass(eq=False)
class Lowering:
    """A kernel as the compiler lowered it.

    Attributes:
        kernel: its name; target: compute capability (90); num_warps: warps of one program.
        triton: version of the compiler.
        ttgir, ptx: text. shared: bytes of shared memory of one program.
    """

    kernel: str
    target: int
    num_warps: int
    triton: str
    ttgir: str
    ptx: str
    shared: int
    options: dict[str, Any] = field(default_factory=dict)
    _machine: dict[str, Any] | None = None

    @functools.cached_property
    def operations(self) -> list[MemoryOp]:
        """Every access to global memory in the TTGIR, in order, with its layout and its place in the source."""
        return memory_ops(self.ttgir)

    @functools.cached_property
    def instructions(self) -> list[Instruction]:
        """Every PTX instruction that touches global memory, in order, with its width and its place in the source."""
        return instructions(self.ptx)

    @functools.cached_property
    def bound(self) -> list[Bound]:
        """Every operation with the PTX instructions that it became."""
        return bind_instructions(self.operations, self.instructions)

    def _mnemonics(self, kind: str) -> list[str]:
        return list(dict.fromkeys(i.mnemonic for i in self.instructions if i.kind == kind))

    @property
    def loads(self) -> list[str]:
        """Distinct load instructions, in order of appearance: ["ld.global.v4.b32"]."""
        return self._mnemonics("load")

    @property
    def stores(self) -> list[str]:
        """Distinct store instructions."""
        return self._mnemonics("store")

    @property
    def atomics(self) -> list[str]:
        """Distinct atomic instructions: ["red.global.gpu.relaxed.add.noftz.v8.bf16"]; `cas` where it is a loop."""
        return self._mnemonics("atomic")

    def ptx_of(self, lineno: int) -> list[str]:
        """The PTX instructions that came from one line of the source, in order.

        Where Triton wrote a neighbour's line above an access to memory, the access's own line counts.
        """
        own = {id(i): {p.line for p in bound.op.places} for bound in self.bound for i in bound.run}
        accesses = iter(self.instructions)
        access = next(accesses, None)
        found, lines = [], set()
        for raw in self.ptx.splitlines():
            text = raw.strip()
            if text.startswith(".loc"):
                call = re.search(r"inlined_at\s+\d+\s+(\d+)", text)
                lines = {int(text.split()[2])} | ({int(call[1])} if call else set())
            elif text.endswith(";") and not text.startswith((".", "//", "}")):
                here = lines
                if access is not None and text == access.text:
                    here = own.get(id(access), lines)
                    access = next(accesses, None)
                if lineno in here:
                    found.append(text)
        return found

    def check_cache_modifiers(self) -> None:
        """Refuse loads that the assembler refuses, without calling it.

        Raises:
            CompileError: an eviction policy beside another cache modifier, with the author's line.
        """
        for i in self.instructions:
            mixed = re.search(r"\.(ca|cg|cv|cs|wb|wt)\.(L1::evict_\w+)", i.mnemonic)
            if mixed:
                place = next((b.op.places[-1] for b in self.bound if i in b.run and b.op.places), None)
                raise errors.CompileError(
                    self.kernel,
                    f'cache_modifier=".{mixed[1]}" and eviction_policy="{mixed[2].removeprefix("L1::")}" together are '
                    f"refused by the assembler ({i.mnemonic}). Give one of the two.",
                    place.file if place else "",
                    place.line if place else i.line,
                    linecache.getline(place.file, place.line).strip() if place else "",
                )

    def _assembled(self) -> dict[str, Any]:
        if self._machine is None:
            answer = _worker().ask(
                {"do": "assemble", "ptx": self.ptx, "target": self.target, "options": self.options, "functions": []}
            )
            if "error" in answer:
                raise errors.CompileError(self.kernel, answer["error"], log=answer["log"])
            log = answer["log"]
            spill = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
            self._machine = {
                "sass": answer["sass"],
                "registers": int((re.search(r"Used (\d+) registers", log) or [0, 0])[1]),
                "spills": int(spill[1]) + int(spill[2]) if spill else 0,
            }
        return self._machine

    @property
    def sass(self) -> str:
        """The machine code, disassembled by the nvdisasm of the Triton wheel."""
        return self._assembled()["sass"]

    @property
    def registers(self) -> int:
        """Registers of one thread."""
        return self._assembled()["registers"]

    @property
    def spills(self) -> int:
        """Bytes of spill stores and spill loads in the machine code of one thread; 0 is good."""
        return self._assembled()["spills"]

    def to_json(self) -> dict[str, Any]:
        """Everything needed to count traffic later, under another Triton."""
        keys = ("kernel", "target", "num_warps", "triton", "ttgir", "ptx", "shared")
        return {k: getattr(self, k) for k in keys}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Lowering":
        """A lowering as the cache on disk keeps it."""
        return cls(**data)


# --- What is compiled -------------------------------------------------------------------------------------------------


@dataclass
class _Pointer:
    """Stands in for a tensor when Triton asks for its type and alignment: as on a GPU, storages are well aligned."""

    dtype: Any
    address: int

    def data_ptr(self) -> int:
        return self.address


def _stand_in(value):
    if isinstance(value, tuple):
        items = [_stand_in(v) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, torch.Tensor):
        return _Pointer(value.dtype, 512 + value.storage_offset() * value.element_size())
    if isinstance(getattr(value, "base", None), torch.Tensor) and not hasattr(value, "block_shape"):
        base = value.base  # triton.reinterpret
        return _Pointer(value.dtype, 512 + base.storage_offset() * base.element_size())
    return value


_TYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
}


def _from_type(value):
    """A signature in place of an argument: "*fp16" is an aligned pointer, "*fp16:4" one at byte 4, "i32" any integer."""
    if not isinstance(value, str):
        return value
    pointer = re.fullmatch(r"\*(\w+)(?::(\d+))?", value)
    if pointer and pointer[1] in _TYPES:
        return _Pointer(_TYPES[pointer[1]], 512 + int(pointer[2] or 0))
    numbers = {"i32": 7, "i64": (1 << 40) + 1, "u32": (1 << 31) + 1, "fp32": 0.5, "u1": True, "i1": True}
    if value in numbers:
        return numbers[value]
    raise errors.LaunchError(
        f"{value!r} is no type: expected one of {', '.join(numbers)}, or a pointer such as '*fp16' or '*fp32:4'."
    )


def _specialise(launch: Launch, target: int):
    """Signature, constants and attributes, by the code of Triton's own launcher."""
    from triton._utils import find_paths_if, get_iterable_path
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    jitted = launch.kernel
    if not isinstance(jitted, JITFunction):
        wanted = ("do_not_specialize", "do_not_specialize_on_alignment")
        jitted = JITFunction(launch.fn, **{k: v for k, v in jitted.kwargs.items() if k in wanted})
    backend = CUDABackend(GPUTarget("cuda", target, 32))
    binder = create_function_from_signature(jitted.signature, jitted.params, backend)
    values, kinds, _ = binder(**{k: _stand_in(v) for k, v in launch.values.items()})
    types_ = [k[0] for k in kinds]
    signature = dict(zip(values, types_))
    given = list(launch.values.values())
    constants = {p: get_iterable_path(given, p) for p in find_paths_if(types_, lambda _, v: v == "constexpr")}
    marks = ["" if k[0] == "constexpr" else k[1] for k in kinds]
    attrs = find_paths_if(marks, lambda _, x: isinstance(x, str))
    attrs = {p: backend.parse_attr(get_iterable_path(marks, p)) for p in attrs}
    return signature, constants, {p: a for p, a in attrs.items() if a}


class _Shipment:
    """A kernel and everything its source refers to, as JSON."""

    def __init__(self, launch: Launch):
        self.functions: list[dict[str, Any]] = []
        self._index: dict[int, int] = {}
        self._function(launch.kernel)

    def _function(self, jitted) -> int:
        if id(jitted) in self._index:
            return self._index[id(jitted)]
        fn = jitted.fn
        try:
            source, lineno = function_source(fn)
        except (OSError, TypeError) as error:
            raise errors.Unsupported(
                f"{fn.__name__} has no source to compile ({error}). Define it in a file or a notebook cell."
            ) from None
        index = self._index[id(jitted)] = len(self.functions)
        record: dict[str, Any] = {}
        self.functions.append(record)
        scope = capture_scope(fn)
        tree = ast.parse(source)
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef)
        typed = [a.annotation for a in ast.walk(definition.args) if isinstance(a, ast.arg) and a.annotation]
        typed += [d for d in [*definition.args.defaults, *definition.args.kw_defaults, definition.returns] if d]
        names = {n.id for t in typed for n in ast.walk(t) if isinstance(n, ast.Name)}
        stock = getattr(jitted, "kwargs", None)
        options = stock if isinstance(stock, dict) else {"noinline": getattr(jitted, "noinline", None)}
        record.update(
            name=fn.__name__,
            file=fn.__code__.co_filename,
            lineno=lineno,
            source=source,
            module=fn.__module__ or "",
            flags=fn.__code__.co_flags & 0x1000000,  # from __future__ import annotations
            kind="constexpr_function" if type(jitted).__name__ == "ConstexprFunction" else "jit",
            options={k: v for k, v in options.items() if k in ("noinline", "debug") and v is not None},
            types={n: self.encode(scope[n]) for n in sorted(names) if n in scope},
            globals={
                n: self.encode(scope[n], node=tree, name=n) for n in free_names(tree) if n in scope and n != fn.__name__
            },
            defaults=[self.encode(v) for v in fn.__defaults__] if fn.__defaults__ else None,
        )
        if fn.__name__ in free_names(tree) and scope.get(fn.__name__) is jitted:
            record["globals"][fn.__name__] = {"function": index}
        return index

    def encode(self, value, node: ast.AST | None = None, name: str = ""):
        load_triton()
        import triton.language as tl
        from triton.runtime.jit import KernelInterface

        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return {"float": repr(value)}
        if isinstance(value, tl.constexpr):
            return {"constexpr": self.encode(value.value)}
        if isinstance(value, tl.dtype) and type(value) is tl.dtype:
            return {"dtype": value.name}
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return {type(value).__name__: [self.encode(v) for v in value]}
        module = getattr(value, "__module__", None) or ""
        if isinstance(value, types.ModuleType):
            if value.__name__.split(".")[0] in (*sys.stdlib_module_names, "triton", "numpy", "torch"):
                return {"module": value.__name__}
            used = {
                n.attr
                for n in ast.walk(node or ast.Module([], []))
                if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == name
            }
            items = {a: self.encode(getattr(value, a)) for a in sorted(used) if hasattr(value, a)}
            return {"namespace": {"name": value.__name__, "items": items}}
        inner: Any = getattr(value, "fn", None)
        if isinstance(value, KernelInterface) or type(value).__name__ == "ConstexprFunction":
            while not isinstance(inner, types.FunctionType) and hasattr(inner, "fn"):
                value, inner = inner, inner.fn
            if (inner.__module__ or "").split(".")[0] == "triton":
                return {"import": [inner.__module__, inner.__qualname__]}
            return {"function": self._function(value)}
        if module.split(".")[0] == "triton" and getattr(value, "__name__", None):
            return {"import": [module, getattr(value, "__qualname__", value.__name__)]}
        return {"python": re.sub(r"\W", "_", type(value).__name__)}


def lower(kernel, *args, target="sm_90", num_warps: int | None = None, **kwargs) -> Lowering:
    """Compile a kernel for a GPU that need not be there.

    Args:
        kernel: any Triton kernel, autotuned or not.
        *args: its arguments; a tensor may be replaced by its type ("*fp16", or "*fp16:2" for a pointer 2 bytes off a
            16-byte boundary), an integer by "i32". Alignment and constants are specialised as a launch would.
        target: "sm_90", 90, (9, 0), ...: see `TARGETS`.
        num_warps: warps of one program; 4 unless an autotuned configuration says otherwise.
        **kwargs: further arguments, constants and launch options.

    Raises:
        CompileError: the compiler refuses the kernel; carries its reason and the learner's line.
        LaunchError: unknown target, wrong arguments.
        NoCompiler: no compiler to be had.
    """
    args = tuple(_from_type(a) for a in args)
    kwargs = {k: _from_type(v) if isinstance(v, str) and v.startswith("*") else v for k, v in kwargs.items()}
    if num_warps is not None:
        kwargs["num_warps"] = num_warps
    return lower_launch(bind(kernel, (1,), args, kwargs), target)


_answers: "OrderedDict[str, Lowering]" = OrderedDict()
_answers_lock = threading.Lock()


def lower_launch(launch: Launch, target) -> Lowering:
    """`lower` for a launch that is already bound."""
    capability = parse_target(target)
    shipment = _Shipment(launch)
    signature, constants, attrs = _specialise(launch, capability)
    options = {k: v for k, v in launch.options.items() if isinstance(v, (int, str, float, bool)) and v is not None}
    options.setdefault("num_warps", 4)
    request = {
        "do": "compile",
        "constants": [[list(p), shipment.encode(v)] for p, v in constants.items()],
        "functions": shipment.functions,
        "signature": signature,
        "attrs": [[list(p), a] for p, a in attrs.items()],
        "target": capability,
        "options": options,
    }
    key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    with _answers_lock:
        if key in _answers:
            _answers.move_to_end(key)
            return _answers[key]
    worker = _worker()
    answer = worker.ask(request)
    if "error" in answer:
        if "pass pipeline" in answer["error"] and _specialises_warps(shipment.functions):
            raise errors.Unsupported(
                f"{launch.name} asks for warp specialisation (warp_specialize=True), which Triton {worker.version} does not "
                f"compile for sm_{capability} here. Without it, the kernel can be counted."
            )
        file, lineno = answer.get("file") or launch.fn.__code__.co_filename, answer.get("lineno", 0)
        text = linecache.getline(file, lineno).strip() if lineno else ""
        raise errors.CompileError(launch.name, _clean(answer["error"]), file, lineno, text, answer.get("log", ""))
    lowering = Lowering(
        kernel=launch.name,
        target=capability,
        num_warps=int(answer["metadata"]["num_warps"] or options["num_warps"]),
        triton=worker.version,
        ttgir=answer["ttgir"],
        ptx=answer["ptx"],
        shared=answer["metadata"]["shared"] or 0,
        options=options,
    )
    with _answers_lock:
        _answers[key] = lowering
        while len(_answers) > _CACHE_SIZE:
            _answers.popitem(last=False)
    return lowering


def _specialises_warps(functions: list[dict[str, Any]]) -> bool:
    """Whether a kernel, or what it calls, has a loop whose warps are to do different work."""
    return any(re.search(r"warp_specialize\s*=(?!\s*False)", f["source"]) for f in functions)


def _clean(reason: str) -> str:
    """The compiler's reason without its exception's name, indentation and repeated source."""
    quoted = re.match(r"^\w+\(([\"'])(.*)\1\)$", reason.strip(), flags=re.S)
    reason = quoted[2] if quoted else re.sub(r"^\w*(?:Error|Exception): ", "", reason.strip())
    return re.sub(r"\s+", " ", inspect.cleandoc(reason.replace("\\n", "\n"))).strip()


# --- The child --------------------------------------------------------------------------------------------------------


class Worker:
    """The warm child. One request at a time; a child that dies or hangs is replaced."""

    def __init__(self, python: str = sys.executable):
        env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        env.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
        env["TRITON_CACHE_DIR"] = str(_cache_dir())
        env["PYTHONWARNINGS"] = "ignore"
        script = str(Path(__file__).with_name("worker.py"))
        try:
            self.process = subprocess.Popen(
                [python, "-P", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env,
            )
        except OSError as error:
            raise errors.NoCompiler(f"Triton's compiler could not be started: {error}.") from None
        self._lock = threading.Lock()
        self._answers: queue.Queue = queue.Queue()
        threading.Thread(target=self._listen, daemon=True, name="paper-gpu-compiler").start()
        self._hello: dict | None = None

    def _listen(self):
        stream = self.process.stdout
        while True:
            head = stream.read(8)
            if len(head) < 8:
                self._answers.put(None)
                return
            self._answers.put(json.loads(stream.read(int.from_bytes(head, "little"))))

    def _next(self, timeout: float):
        try:
            return self._answers.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise errors.NoCompiler(f"The compiler gave no answer within {timeout:.0f} s.") from None

    def hello(self) -> dict:
        """What the process said of itself when it had started: its Triton. Raises NoCompiler if it could not."""
        if self._hello is None:
            self._hello = self._next(TIMEOUT) or {"error": "its process ended at once"}
            if "error" in self._hello:
                self.close()
                raise errors.NoCompiler(
                    f"Triton's compiler could not be started: {self._hello['error']}. Is Triton installed in "
                    f"{sys.executable}? `pip install triton`"
                )
        return self._hello

    @property
    def version(self) -> str:
        """The version of its Triton."""
        return self.hello()["triton"]

    @property
    def alive(self) -> bool:
        """Does the process still run?"""
        return self.process.poll() is None

    def ask(self, request: dict) -> dict:
        """Send a request, and wait for the answer to it."""
        with self._lock:
            self.hello()
            data = json.dumps(request).encode()
            assert self.process.stdin is not None
            try:
                self.process.stdin.write(struct.pack("<Q", len(data)) + data)
                self.process.stdin.flush()
                answer = self._next(TIMEOUT)
            except OSError:
                answer = None
            except BaseException:  # interrupted: the answer that is still to come belongs to nobody
                self.close()
                raise
            if answer is None:
                code = self.process.wait()
                return {"error": f"The compiler crashed on this kernel (exit status {code}).", "log": ""}
            return answer

    def close(self):
        """End the process."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


_child: Worker | None = None
_child_lock = threading.Lock()


def _worker() -> Worker:
    global _child
    with _child_lock:
        if _child is None or not _child.alive:
            _child = Worker()
        return _child


def warm():
    """Start the compiler in the background, so that the first lowering does not wait for it."""
    with contextlib.suppress(errors.NoCompiler):
        _worker()


@atexit.register
def _stop():
    if _child is not None:
        _child.close()


def _cache_dir() -> Path:
    """Where the child keeps what it compiled: apart from Triton's own cache, since its entries stop at PTX."""
    home = os.environ.get("TRITON_CACHE_DIR") or os.path.join(os.path.expanduser("~"), ".triton", "cache")
    path = Path(home) / "paper-gpu"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    return Path(tempfile.gettempdir()) / f"paper-gpu-{os.getuid() if hasattr(os, 'getuid') else 'cache'}"
