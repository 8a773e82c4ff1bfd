"""Whose work a result is: whether a launched kernel wrote what an answer returns, and was given the call's inputs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from checks.core.watch import door
from msda_core.machine.launch import Launch, tensors_of
from msda_core.machine.run.guard import without_dynamo

__all__ = ["Work"]

#: Operators that change dtype, layout or shape and leave the numbers: before a launch and after it they are no work.
MOVES = ("aten::_to_copy", "aten::cat", "aten::clone", "aten::constant_pad_nd", "aten::lift_fresh_copy", "aten::stack")


@dataclass(frozen=True)
class _Origin:
    """Where the numbers of a storage come from: inputs of the call, by their place; kernels."""

    inputs: frozenset[int] = frozenset()
    written: bool = False


class Work(TorchDispatchMode):
    """Follows a call's inputs through launches to its result. Nothing is computed, and nothing refused.

    Attributes:
        missing: what was found wrong after `run`, as a sentence; "" if nothing was.
    """

    def __init__(self, names: Sequence[str]):
        super().__init__()
        self._names, self.missing = names, ""
        self._origins: dict[int, _Origin] = {}
        self._given: set[int] = set()
        self._launched: list[Launch] = []

    def run(self, function: Callable[[], Any], args: Sequence[Any]) -> Any:
        """function(), whose inputs are args."""
        inputs = {i: [t for t in _tensors(arg) if _counts(t)] for i, arg in enumerate(args)}
        for i, tensors in inputs.items():
            for tensor in tensors:
                self._origins[_address(tensor)] = _Origin(frozenset([i]))
        with self:
            value = function()
        if all(t.numel() for t in _tensors(args)):  # else there is nothing to do
            self.missing = self._missing([t for t in _tensors(value) if _counts(t)], [i for i in inputs if inputs[i]])
        return value

    @door  # these three run while the answer does
    def launched(self, launch: Launch) -> None:
        """Before a kernel runs: which inputs it is given."""
        self._launched.append(launch)
        for _, tensor in tensors_of(launch.values):
            self._given |= self._origins.get(_address(tensor), _Origin()).inputs

    @door
    def see(self, access: Any) -> None:
        """Before a kernel's access is executed: what it writes."""
        if access.kind == "load":
            return
        if access.argument is not None:
            written = [access.argument.tensor]
        else:  # no lane is active, as where every point is outside: any of its tensors
            written = [tensor for _, tensor in tensors_of(self._launched[-1].values)]
        for tensor in written:
            self._origins[_address(tensor)] = _Origin(written=True)

    @without_dynamo
    @door
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name
        moved = _Origin()
        if name in MOVES or name == "aten::copy_":
            sources = [
                self._origins.get(_address(t), _Origin())
                for t in _tensors(args[1:2] if "copy_" in name[6:] else args[:1])
            ]
            if sources:
                moved = _Origin(frozenset().union(*(s.inputs for s in sources)), all(s.written for s in sources))
        for value in self._changed(func._schema, args, kwargs, out):
            if isinstance(value, Tensor) and value.numel():
                self._origins[_address(value)] = moved
        return out

    @staticmethod
    def _changed(schema: Any, args: Sequence[Any], kwargs: dict, out: Any) -> Iterator[Any]:
        """The tensors whose memory an operator wrote: arguments that it changes, and what it allocates."""
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from _tensors(args[i] if i < len(args) else kwargs.get(argument.name))
        old = {_address(tensor) for tensor in _tensors(list(args))}
        yield from (tensor for tensor in _tensors(out) if _address(tensor) not in old)

    def _missing(self, returned: list[Tensor], inputs: Iterable[int]) -> str:
        if not returned:
            return ""
        if not self._launched:
            return "right, but no kernel was launched: PyTorch computed this. Launch your own kernel on these inputs."
        kernels = " and ".join(dict.fromkeys(f"`{launch.name}`" for launch in self._launched))
        if not all(self._origins.get(_address(tensor), _Origin()).written for tensor in returned):
            return f"right, but what is returned was not written by a kernel: {kernels} ran beside it. Return what it writes."
        lost = [f"`{self._names[i]}`" for i in inputs if i not in self._given]
        return (
            f"right, but {kernels} was not given {' and '.join(lost)}, and so cannot have done the work."
            if lost
            else ""
        )


def _counts(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and tensor.dtype.is_floating_point


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(thing: Any) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, (tuple, list)):
        for item in thing:
            yield from _tensors(item)
