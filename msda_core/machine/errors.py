"""What can be wrong with a kernel, each as one exception that names the line it happened on."""

from dataclasses import dataclass

__all__ = [
    "BFloat16Arithmetic",
    "CompileError",
    "KernelError",
    "KernelFailed",
    "LaunchError",
    "MachineError",
    "NoCompiler",
    "OutOfBounds",
    "PythonGlobal",
    "Recursion",
    "UninitialisedRead",
    "Unsupported",
]


@dataclass(frozen=True)
class Frame:
    """One level of the call chain inside a kernel: the place of a call, in the file that the author wrote."""

    filename: str
    function: str
    lineno: int
    end_lineno: int
    column: int
    text: str


class MachineError(Exception):
    """Base of everything this package raises on purpose."""


class LaunchError(MachineError, ValueError):
    """The launch itself is wrong: no grid, a bad grid, mixed devices, an unknown option, a stray view."""


class Unsupported(MachineError, NotImplementedError):
    """A correct kernel uses something this machine does not model; it says what, rather than counting it wrongly."""


class NoCompiler(MachineError, RuntimeError):
    """Triton's compiler could not be started at all."""


class CompileError(MachineError):
    """The compiler refuses the kernel.

    Attributes:
        reason: the compiler's own words, one or a few lines.
        lineno, line, filename: the learner's line (0, "" and the kernel's file where the compiler names none).
        log: everything the compiler said.
    """

    def __init__(self, kernel: str, reason: str, filename: str = "", lineno: int = 0, line: str = "", log: str = ""):
        where = f"line {lineno}: `{line}`: " if lineno else ""
        super().__init__(f"{kernel} does not compile. {where}{reason}")
        self.kernel, self.reason, self.filename, self.lineno, self.line, self.log = (
            kernel,
            reason,
            filename,
            lineno,
            line,
            log,
        )


class KernelError(MachineError):
    """Something inside a kernel went wrong.

    Attributes:
        lineno: line number in the learner's file or cell; line: its text; filename: the file.
        program: (x, y, z) of the program that was running.
        frames: the call chain inside the kernel, outermost first.
    """

    def __init__(self, message: str, frames: tuple[Frame, ...] = (), program: tuple[int, int, int] | None = None):
        self.frames = frames
        self.program = program
        inner = frames[-1] if frames else None
        self.lineno = inner.lineno if inner else 0
        self.line = inner.text if inner else ""
        self.filename = inner.filename if inner else ""
        self.function = inner.function if inner else ""
        where = f"line {self.lineno}: `{self.line}` " if inner else ""
        super().__init__(where + message)


class OutOfBounds(KernelError, IndexError):
    """An unmasked lane reaches past the memory of the tensor it was given. Nothing was read or written.

    Attributes:
        tensor: name of the kernel's argument; None if the address belongs to none of them.
        offset: the first offending element, counted from the argument's first; size: how many elements there are.
        lanes: how many lanes are outside; kind: "load", "store" or "atomic".
    """

    def __init__(self, message, frames, program, *, tensor, offset, size, lanes, kind):
        super().__init__(message, frames, program)
        self.tensor, self.offset, self.size, self.lanes, self.kind = tensor, offset, size, lanes, kind


class UninitialisedRead(KernelError):
    """A load or an atomic reads memory that `torch.empty` made and nobody wrote. Attributes as in `OutOfBounds`."""

    def __init__(self, message, frames, program, *, tensor, offset, size, lanes, kind):
        super().__init__(message, frames, program)
        self.tensor, self.offset, self.size, self.lanes, self.kind = tensor, offset, size, lanes, kind


class BFloat16Arithmetic(KernelError, TypeError):
    """Arithmetic on a 16- or 8-bit float that the interpreter holds as raw bits."""


class PythonGlobal(KernelError, NameError):
    """A kernel reads a plain Python global, which the compiler refuses."""


class Recursion(KernelError, RecursionError):
    """A jit function calls itself, which the compiler cannot inline."""


class KernelFailed(KernelError, RuntimeError):
    """Any other exception inside a kernel; `__cause__` is the original, with its traceback."""
