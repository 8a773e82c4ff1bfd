"""Run any Triton kernel on the host, with every memory access in view.

This is Triton's own interpreter, driven by an executor of ours that adds four things.

1. *Addresses that know their tensor.* Each pointer argument starts in the middle of its own region of a made-up
   address space, so an address names the argument it was computed from, however far it strays; it becomes a host
   address only after it was checked. Events carry a second, canonical address: each storage begins on a 512-byte
   boundary, as CUDA's allocators give it, whatever the host's allocator did.
2. *A view of each access*: an observer sees kind, place in the source, addresses and mask before anything is touched.
3. *Both modes.* Kernels and helpers are interpreted whether Triton was imported with TRITON_INTERPRET or not, so the
   machine works where kernels are normally compiled.
4. *The right bits for bf16*: casts round to nearest even, atomics and `tl.dot` widen, and arithmetic on the raw 16-bit
   pattern, which the interpreter would do silently, is an error.

One launch at a time: the interpreter keeps its state in module globals.
"""

import builtins
import contextlib
import functools
import gc
import linecache
import sys
import threading
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import torch

from msda_core.device import load_triton
from msda_core.machine import errors
from msda_core.machine.errors import Frame
from msda_core.machine.launch import Launch, check_devices, is_descriptor
from msda_core.machine.run import folding, libdevice
from msda_core.machine.run.numbers import bf16_atomic_add, bits_to_float32, float32_to_bits, to_integer
from msda_core.machine.run.standin import StandIn, answering
from msda_core.machine.source import allowed_in_kernel, capture_scope, rewrite

__all__ = ["Access", "Argument", "Emulation"]

REGION = 54  # log2 of the made-up address range of one argument; leaves room for 511 arguments in an int64
SHELF = 40  # log2 of the canonical address range of one storage
MIDDLE = 1 << (REGION - 1)
_LIBDEVICE = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice")
_MARK = "__machine_function__"
_lock = threading.RLock()


@dataclass(eq=False)
class Argument:
    """One pointer argument of a launch.

    Attributes:
        name: the kernel's parameter, `name[i]` inside a tuple.
        tensor: what the caller passed.
        virtual: made-up address of its first element, as the kernel sees it.
        canonical: address of its first element when every storage begins on a 512-byte boundary.
        first, last: virtual bounds of the storage, in bytes.
        itemsize: bytes of one element; size: elements from the first to the end of the storage.
    """

    name: str
    tensor: torch.Tensor
    virtual: int
    canonical: int
    host: int
    first: int
    last: int
    itemsize: int
    storage: int

    @property
    def size(self) -> int:
        """How many elements lie between the argument's first and the end of its memory."""
        return (self.last - self.virtual) // self.itemsize

    def element(self, address: int) -> int:
        """Element offset, from the argument's first, of a virtual address."""
        return (int(address) - self.virtual) // self.itemsize


@dataclass(eq=False)
class Access:
    """One memory operation of one program, before it happens.

    Attributes:
        kind: "load", "store" or "atomic"; op: "add", "cas", ... for atomics.
        frames: call chain inside the kernel, outermost first.
        program: (x, y, z).
        addresses: virtual, uint64, in the tile's shape; mask: bool, same shape.
        itemsize: bytes of one element.
        argument: the pointer argument all active lanes belong to; None where they belong to several or to none.
        value: what is stored or combined, raw (bf16 as uint16), or None.
        turn: (iteration, iterations) of each unrolled loop around it, outermost first.
        phase: barriers that the program has passed.
        sem, scope: of an atomic, "acq_rel" and "gpu"; a volatile load is "relaxed" over "sys"; empty if plain.
        outcome: what becomes of it later.
    """

    kind: str
    op: str
    frames: tuple[Frame, ...]
    program: tuple[int, int, int]
    addresses: np.ndarray
    mask: np.ndarray
    itemsize: int
    argument: Argument | None = None
    value: np.ndarray | None = None
    dtype: Any = None
    turn: tuple[tuple[int, int], ...] = ()
    phase: int = 0
    sem: str = ""
    scope: str = ""
    outcome: "Outcome" = field(default_factory=lambda: Outcome())


@dataclass(eq=False)
class Outcome:
    """What is known of an access only once it is done.

    Attributes:
        read: whether the program has looked at what an atomic returned.
        wrote: whether a compare-and-swap found what it compared with, in any lane.
    """

    read: bool = False
    wrote: bool = False


class _State(threading.local):
    """Where the program of one thread is."""

    def __init__(self):
        self.stack: list[tuple] = []  # jit functions being called
        self.turns: list[tuple[int, int]] = []  # unrolled loops, outermost first
        self.phase = 0


class Emulation:
    """One launch in the interpreter, seen by an observer.

    Args:
        launch: from `bind`.
        observer: called with an `Access` before it is executed, after its bounds were checked; may raise to prevent it.
        after: called with (access, value) once it is done: what was loaded or stored, or the value before an atomic.
        target: compute capability, for kernels that ask for it.
        scratch: leave the caller's tensors as they are; the launch writes to copies.
    """

    def __init__(
        self,
        launch: Launch,
        observer: Callable[[Access], None] | None = None,
        after=None,
        target: int = 90,
        scratch: bool = False,
    ):
        check_devices(launch)
        self.target = target
        self.scratch = scratch
        self.launch = launch
        self.observer = observer
        self.after = after
        self.arguments: list[Argument] = []
        self.store: Callable | None = None  # set by a witness: called with (access, write(mask)) in place of a store
        self.handover: Callable[[], None] | None = None  # set by the interleaver: called before every access
        self.narrow_arithmetic = False  # whether bf16 and fp8 may be computed with, each operation rounded
        self.poison = False  # whether lanes that a masked load leaves undefined hold NaN, not the zero they mostly are
        self._regions: list[Argument] = []
        self._hosts: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._aliases: list[tuple[int, int, Any]] | None = None
        self._functions: dict[int, types.FunctionType] = {}
        self._calls = _State()
        self.loops: dict[tuple[str, int], list[int]] = {}  # (file, line) of a loop -> [entered, iterations]
        self._positions: dict[tuple[types.CodeType, int], Frame] = {}
        self._builder: Any = None

    # The address space

    def _host_storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._hosts:
            host = storage.cpu() if storage.device.type != "cpu" else storage.clone() if self.scratch else storage
            self._hosts[key] = (storage, host)
        return self._hosts[key][1]

    def _pointer(self, name: str, value) -> int:
        tensor = getattr(value, "base", value) if not isinstance(value, torch.Tensor) else value
        if not isinstance(tensor, torch.Tensor):
            raise errors.LaunchError(
                f"{name} must be a torch tensor, got {type(value).__module__}.{type(value).__name__}."
            )
        host = self._host_storage(tensor)
        keys = list(self._hosts)
        storage = keys.index(tensor.untyped_storage()._cdata)
        dtype: Any = getattr(value, "dtype", tensor.dtype)
        itemsize = getattr(dtype, "itemsize", None) or max(1, dtype.primitive_bitwidth // 8)
        start = int(tensor.storage_offset()) * tensor.element_size()
        region = ((len(self.arguments) + 1) << REGION) + MIDDLE
        argument = Argument(
            name=name,
            tensor=tensor,
            virtual=region + start,
            canonical=((storage + 1) << SHELF) + start,
            host=host.data_ptr() + start,
            first=region,
            last=region + host.nbytes(),
            itemsize=itemsize,
            storage=storage,
        )
        self.arguments.append(argument)
        return argument.virtual

    def _named(self, addresses: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Virtual addresses for those that a kernel read from memory: of whichever tensor lives there.

        Kernels of grouped products take the addresses of their matrices in a tensor. What is found becomes an argument,
        "memory 1" and so on; what belongs to no tensor stays, and is reported.
        """
        addresses = addresses.copy()
        start, argument = 0, None
        while True:
            left = mask & (addresses >> np.uint64(REGION) == 0)
            if not left.any():
                return addresses
            first = int(addresses[left].min())
            if self._aliases is None or not any(start <= first < stop for start, stop, _ in self._aliases):
                self._aliases = self._living()
            found = next((a for a in self._aliases if a[0] <= first < a[1]), None)
            if found is None:
                if argument is not None:  # outside what the other lanes read: an element that does not exist
                    addresses[left] = addresses[left] - np.uint64(start) + np.uint64(argument.first)
                return addresses
            start, stop, argument = found
            if isinstance(argument, torch.Tensor):
                at = self._aliases.index(found)
                self._pointer(f"memory {1 + sum(a.name.startswith('memory ') for a in self.arguments)}", argument)
                argument = self.arguments[-1]
                self._aliases[at] = (start, stop, argument)
            inside = left & (addresses >= np.uint64(start)) & (addresses < np.uint64(stop))
            addresses[inside] = addresses[inside] - np.uint64(start) + np.uint64(argument.first)

    def _living(self) -> list[tuple[int, int, Any]]:
        """(first byte, end, argument or tensor) of the memory of every tensor there is."""
        own = {a.tensor.untyped_storage().data_ptr(): a for a in self.arguments}
        found: dict[int, tuple[int, int, Any]] = {}
        for tensor in gc.get_objects():
            if issubclass(type(tensor), torch.Tensor):
                with contextlib.suppress(RuntimeError, NotImplementedError):  # tensors without memory of their own
                    storage = tensor.untyped_storage()
                    start = storage.data_ptr()
                    if start and start not in found:
                        found[start] = (start, start + storage.nbytes(), own.get(start, tensor))
        return list(found.values())

    def argument_of(self, address: int) -> Argument | None:
        """The argument whose region a virtual address lies in."""
        index = (int(address) >> REGION) - 1
        return self.arguments[index] if 0 <= index < len(self.arguments) else None

    def canonical(self, access: Access) -> np.ndarray:
        """Addresses of an access with every storage on a 512-byte boundary (int64); masked lanes are meaningless."""
        if access.argument is not None:
            return access.addresses.astype(np.int64) + (access.argument.canonical - access.argument.virtual)
        shift = np.array([0] + [a.canonical - a.virtual for a in self.arguments], np.int64)
        index = np.minimum(access.addresses >> np.uint64(REGION), len(self.arguments)).astype(np.int64)
        return access.addresses.astype(np.int64) + shift[index]

    def _to_host(self, access: Access) -> np.ndarray:
        """Host addresses; masked lanes get 0."""
        addresses = access.addresses
        if access.argument is not None:
            shifted = addresses + np.uint64((access.argument.host - access.argument.virtual) % (1 << 64))
        else:
            shift = np.array([0] + [(a.host - a.virtual) % (1 << 64) for a in self.arguments], np.uint64)
            index = np.minimum(addresses >> np.uint64(REGION), len(self.arguments)).astype(np.int64)
            shifted = addresses + shift[index]
        return np.where(access.mask, shifted, np.uint64(0))

    # Where we are

    def frames(self) -> tuple[Frame, ...]:
        """The call chain inside the kernel, outermost first."""
        chain = []
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            function = frame.f_globals.get(_MARK)
            if function is not None:
                chain.append(self._position(frame.f_code, frame.f_lasti, frame.f_lineno))
            elif chain and frame.f_code is Emulation._program.__code__:
                break
            frame = frame.f_back
        return tuple(reversed(chain))

    def _position(self, code: types.CodeType, lasti: int, lineno: int) -> Frame:
        key = (code, lasti)
        found = self._positions.get(key)
        if found is None:
            line, end, column = lineno, lineno, 0
            for i, (start, stop, col, _) in enumerate(code.co_positions()):
                if 2 * i == lasti and start is not None:
                    line, end, column = start, stop or start, col or 0
                    break
            text = linecache.getline(code.co_filename, line).strip()
            found = self._positions[key] = Frame(code.co_filename, code.co_name, line, end, column, text)
        return found

    def _frames_of(self, error: BaseException) -> tuple[Frame, ...]:
        chain, tb = [], error.__traceback__
        while tb is not None:
            if _MARK in tb.tb_frame.f_globals:
                chain.append(self._position(tb.tb_frame.f_code, tb.tb_lasti, tb.tb_lineno))
            tb = tb.tb_next
        own = [f for f in chain if "triton" not in f.filename.replace("\\", "/").split("/")]
        return tuple(own or chain)

    @property
    def program(self) -> tuple[int, int, int]:
        """The program that runs now: its ids along the three axes of the grid."""
        return self._builder.grid_idx

    # Access hooks

    def _look(self, kind: str, op: str, ptrs, mask, value=None, sem: str = "", scope: str = "") -> Access:
        if self.handover is not None:
            self.handover()
        addresses = ptrs.data
        mask = np.asarray(mask if isinstance(mask, np.ndarray) else mask.data, bool)
        if mask.shape != addresses.shape:
            mask = np.broadcast_to(mask, addresses.shape)
        element = ptrs.get_element_ty()
        itemsize = max(1, element.primitive_bitwidth // 8)
        state = self._calls
        access = Access(
            kind,
            op,
            self.frames(),
            self.program,
            addresses,
            mask,
            itemsize,
            value=value,
            dtype=element,
            turn=tuple(state.turns),
            phase=state.phase,
            sem=sem,
            scope=scope,
        )
        active = access.addresses.ravel() if mask.all() else access.addresses[mask]
        if active.size:
            if int(active.min()) >> REGION == 0:
                access.addresses = self._named(access.addresses, mask)
                active = access.addresses[mask]
            low, high = int(active.min()), int(active.max())
            owner = self.argument_of(low)
            if owner is not None and owner.first <= low and high + itemsize <= owner.last:
                access.argument = owner
            else:
                self._check_each(access, active)
        if self.observer is not None:
            self.observer(access)
        return access

    def _check_each(self, access: Access, active: np.ndarray):
        index = (active >> np.uint64(REGION)).astype(np.int64)
        known = (index >= 1) & (index <= len(self.arguments))
        low = np.array([0] + [a.first for a in self.arguments], np.uint64)
        high = np.array([0] + [a.last - access.itemsize for a in self.arguments], np.uint64)
        safe = np.where(known, index, 0)
        bad = ~known | (active < low[safe]) | (active > high[safe])
        if not bad.any():
            return
        first = int(active[np.argmax(bad)])
        owner = self.argument_of(first)
        verb = {"load": "reads", "store": "writes", "atomic": "updates"}[access.kind]
        lanes = int(bad.sum())
        many = f"{lanes} of {active.size} active lanes are outside" if active.size > 1 else "the lane is outside"
        program = f"in program {access.program}"
        if owner is None:
            raise errors.OutOfBounds(
                f"{verb} an address that was not computed from any tensor argument ({first:#x}); {many} {program}.",
                access.frames,
                access.program,
                tensor=None,
                offset=None,
                size=None,
                lanes=lanes,
                kind=access.kind,
            )
        offset = owner.element(first)
        end = f"the {owner.size} elements of {owner.name}" if owner.size else f"{owner.name}, which is empty"
        side = "before" if offset < 0 else "past"
        masked = bool((~access.mask).any())
        hint = "Does the mask cover every way out?" if masked else "Is a mask missing, or an offset wrong?"
        raise errors.OutOfBounds(
            f"{verb} element {offset} of {owner.name}, {side} {end}; {many} {program}. {hint}",
            access.frames,
            access.program,
            tensor=owner.name,
            offset=offset,
            size=owner.size,
            lanes=lanes,
            kind=access.kind,
        )

    def _undefined(self, shape, dtype, kind) -> np.ndarray:
        """What masked lanes hold where the load gives no `other`."""
        if not self.poison:
            return np.zeros(shape, kind)
        if np.issubdtype(kind, np.floating):
            return np.full(shape, np.nan, kind)
        if dtype.is_floating():  # bf16 and fp8 travel as raw bits; these are NaN in each of their formats
            return np.full(shape, 0x7FC0 if dtype.primitive_bitwidth == 16 else 0x7F, kind)
        return np.full(shape, True if kind == np.bool_ else np.iinfo(kind).max, kind)

    # Builder methods that replace the interpreter's

    def _methods(self, interpreter: Any) -> tuple[dict[str, Callable], Callable]:
        import triton.language as tl

        builder, Handle, native = interpreter.interpreter_builder, interpreter.TensorHandle, interpreter._interpreter
        np_type = interpreter._get_np_dtype
        stock = type(builder)
        raw8 = {t for t in (tl.float8e5, tl.float8e4nv, tl.float8e4b8, tl.float8e5b16, tl.float8e4b15)}

        class Result(Handle):  # type: ignore[misc, valid-type]
            """What an atomic returns: notes that somebody reads it."""

            def __init__(self, data, dtype, access):
                self.outcome = None
                super().__init__(data, dtype)
                self.outcome = access.outcome

            @property
            def data(self):
                if self.outcome is not None:
                    self.outcome.read = True
                return self._data

            @data.setter
            def data(self, value):
                self._data = value

        def order(sem, scope):
            names = {"acquire_release": "acq_rel", "system": "sys"}
            words = (str(word).rpartition(".")[2].lower() for word in (sem, scope))
            return tuple(names.get(word, word) for word in words)

        def masked_load(ptrs, mask, other, *policy, sem=("", ""), **named):
            volatile = named.get("is_volatile", policy[-1] if policy else False)
            access = self._look("load", "", ptrs, mask, None, *(("relaxed", "sys") if volatile is True else sem))
            dtype = access.dtype
            kind = np_type(dtype)
            if other is not None:
                default = other.data
            elif ptrs.data.size == 1:  # Triton asks `if other`, so a single `other=0` arrives as none at all
                default = np.zeros(ptrs.data.shape, kind)
            else:
                default = self._undefined(ptrs.data.shape, dtype, kind)
            result = native.load(self._to_host(access), access.mask, default, kind)
            if self.after is not None:
                self.after(access, result)
            return Handle(result, dtype)

        def masked_store(ptrs, value, mask, *_, sem=("", ""), **__):
            access = self._look("store", "", ptrs, mask, value.data, *sem)
            host = self._to_host(access)
            if self.store is None:
                native.store(host, value.data, access.mask)
            else:
                self.store(access, lambda lanes: native.store(host, value.data, lanes))
            if self.after is not None:
                self.after(access, value.data)

        def atomic_rmw(op, ptr, val, mask, sem, scope):
            name = str(op).rpartition(".")[2].lower()
            access = self._look("atomic", name, ptr, mask, val.data, *order(sem, scope))
            host = self._to_host(access)
            if access.dtype == tl.bfloat16 and name in ("add", "fadd"):
                result = bf16_atomic_add(native, host, val.data, access.mask)
            else:
                result = native.atomic_rmw(
                    stock.ir_rmw_op_to_interpreter_rmw_op[op],
                    host,
                    val.data,
                    access.mask,
                    stock.ir_sem_to_interpreter_sem[sem],
                )
            if self.after is not None:
                self.after(access, result)
            return Result(result, val.dtype.scalar, access)

        def atomic_cas(ptr, cmp, val, sem, scope):
            mask = np.ones(ptr.data.shape, bool)
            access = self._look("atomic", "cas", ptr, mask, val.data, *order(sem, scope))
            result = native.atomic_cas(self._to_host(access), cmp.data, val.data, stock.ir_sem_to_interpreter_sem[sem])
            if self.after is not None:
                self.after(access, result)
            access.outcome.wrote = bool(np.any(result == cmp.data))
            return Result(result, cmp.dtype.scalar, access)

        def atomic_load(ptr, mask, sem, scope):
            return masked_load(ptr, mask, None, sem=order(sem, scope))

        def atomic_store(ptr, val, mask, sem, scope):
            masked_store(ptr, val, mask, sem=order(sem, scope))

        def barrier():
            self._calls.phase += 1

        def refuse(dtype):
            width = "bfloat16" if dtype == tl.bfloat16 else f"float8 ({dtype})"
            raise errors.BFloat16Arithmetic(
                f"computes on {width} values, which the interpreter holds as raw bits: the result would be nonsense. "
                "Cast first: x.to(tl.float32).",
                self.frames(),
                self.program,
            )

        def is_raw(handle):
            dtype = handle.dtype.scalar
            return dtype == tl.bfloat16 or dtype in raw8

        def in_float32(operation, handles, dtype):
            """A narrow float's arithmetic: widened, computed, rounded back; comparisons give what they give."""
            if not self.narrow_arithmetic:
                refuse(dtype)
            result = operation(*(full(h) if is_raw(h) else h for h in handles)).data
            if result.dtype == np.bool_:
                return Handle(result, dtype)
            return cast_impl(Handle(result.astype(np.float32), tl.float32), dtype)

        def full(handle):
            return cast_impl(handle, tl.float32)

        def binary_op(lhs, rhs, op):
            if is_raw(lhs):
                return in_float32(lambda x, y: stock.binary_op(builder, x, y, op), (lhs, rhs), lhs.dtype.scalar)
            return stock.binary_op(builder, lhs, rhs, op)

        def unary_op(arg, op):
            if is_raw(arg):
                return in_float32(lambda x: stock.unary_op(builder, x, op), (arg,), arg.dtype.scalar)
            return stock.unary_op(builder, arg, op)

        def ternary_op(lhs, rhs, other, op):
            if is_raw(other) and op is not np.where:
                run = lambda x, y, z: stock.ternary_op(builder, x, y, z, op)  # noqa: E731
                return in_float32(run, (lhs, rhs, other), other.dtype.scalar)
            return stock.ternary_op(builder, lhs, rhs, other, op)

        def fma(x, y, z):
            if is_raw(z):
                return in_float32(lambda *xs: stock.create_fma(builder, *xs), (x, y, z), z.dtype.scalar)
            return stock.create_fma(builder, x, y, z)

        def widen(handle):
            if handle.dtype.scalar == tl.bfloat16:
                return Handle(bits_to_float32(handle.data), tl.float32)
            return handle

        def dot(a, b, d, *rest):
            return stock.create_dot(builder, widen(a), widen(b), d, *rest)

        def cast_impl(src, dst_type):
            source, target = src.dtype.scalar, dst_type.scalar
            if tl.bfloat16 in (source, target) and source != target:
                wide = bits_to_float32(src.data) if source == tl.bfloat16 else src.data
                if target == tl.bfloat16:
                    if source in raw8:
                        wide = stock.create_fp_to_fp(builder, src, tl.float32, None).data
                    return Handle(float32_to_bits(wide.astype(np.float32)), target)
                if target in raw8:
                    return stock.create_fp_to_fp(builder, Handle(wide, tl.float32), dst_type, _rtne(interpreter))
                return Handle(to_integer(wide, np_type(target)), target)
            if source.is_floating() and target.is_int() and source not in raw8:
                return Handle(to_integer(src.data, np_type(target)), target)
            return stock.cast_impl(builder, src, dst_type)

        def fp_to_fp(src, dst_type, rounding):
            if tl.bfloat16 in (src.dtype.scalar, dst_type.scalar):
                return cast_impl(src, dst_type)
            return stock.create_fp_to_fp(builder, src, dst_type, rounding)

        def get_bf16(value):
            return Handle(float32_to_bits(np.array([value], np.float32)), tl.bfloat16)

        def extern(library, path, symbol, arguments, kind, pure):
            for argument in arguments:
                if is_raw(argument):
                    refuse(argument.dtype.scalar)  # libdevice has no function of these
            data = [np.asarray(a.data) for a in np.broadcast_arrays(*(a.data for a in arguments))]
            try:
                return Handle(libdevice.apply(symbol, data, np_type(kind.scalar)), kind.scalar)
            except errors.Unsupported as error:
                self.refuse(str(error))

        def splat(kind, scalar):
            # The interpreter gives a comparison the dtype of its operands, and would make numbers of a scalar mask.
            if scalar.data.dtype == bool:
                return Handle(np.full(kind.shape, scalar.data.reshape(-1)[0]), tl.int1)
            return stock.create_splat(builder, kind, scalar)

        def inline_asm(*_, **__):
            self.refuse("runs inline assembly (PTX text), which cannot be run on a host.")

        return {
            "create_extern_elementwise": extern,
            "create_splat": splat,
            "create_inline_asm": inline_asm,
            "create_masked_load": masked_load,
            "create_masked_store": masked_store,
            "create_atomic_rmw": atomic_rmw,
            "create_atomic_cas": atomic_cas,
            "create_atomic_load": atomic_load,
            "create_atomic_store": atomic_store,
            "create_barrier": barrier,
            "binary_op": binary_op,
            "unary_op": unary_op,
            "ternary_op": ternary_op,
            "create_fma": fma,
            "create_dot": dot,
            "cast_impl": cast_impl,
            "create_fp_to_fp": fp_to_fp,
            "get_bf16": get_bf16,
        }, refuse

    def refuse(self, what: str) -> NoReturn:
        """Raise `Unsupported` at the kernel's line."""
        frames = tuple(f for f in self.frames() if "triton" not in f.filename.replace("\\", "/").split("/"))
        where = f"line {frames[-1].lineno}: `{frames[-1].text}` " if frames else ""
        raise errors.Unsupported(f"{where}{what}")

    # Running

    def function(self, jitted) -> types.FunctionType:
        """The interpreter's version of a jit function, over a snapshot of its globals."""
        found = self._functions.get(id(jitted))  # hashing a JITFunction would compile its dependencies
        if found is None:
            from triton.runtime import interpreter

            fn = jitted.fn
            code, borrowed, free = rewrite(fn)
            scope = capture_scope(fn)
            if not (fn.__module__ or "").startswith("triton."):
                self._check_globals(fn, scope, free)
            scope.update({name: getattr(interpreter, name) for name in borrowed})
            scope.update({name: ours for name, value in scope.items() if (ours := _on_the_host(value)) is not None})
            scope[_MARK] = fn.__name__
            scope.setdefault("range", self._loop(range, unrolled=False))
            if code is None:  # no source: run it as it is
                found = types.FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, fn.__closure__)
            else:
                found = types.FunctionType(code, scope, fn.__name__, fn.__defaults__)
            found.__kwdefaults__ = fn.__kwdefaults__
            self._functions[id(jitted)] = found
        return found

    def _check_globals(self, fn, scope, free):
        from triton import knobs

        if getattr(knobs.compilation, "allow_non_constexpr_globals", False):
            return
        for name, (lineno, column) in free.items():
            if name in scope and not hasattr(builtins, name) and not allowed_in_kernel(scope[name]):
                text = linecache.getline(fn.__code__.co_filename, lineno).strip()
                frame = Frame(fn.__code__.co_filename, fn.__name__, lineno, lineno, column, text)
                kind = type(scope[name]).__name__
                cure = (
                    f"Pass it as an argument, or make it a constant: {name} = tl.constexpr(...)."
                    if not callable(scope[name])
                    else "Put @triton.jit above that function."
                )
                raise errors.PythonGlobal(
                    f"uses the Python global {name} ({kind}), which the compiler refuses. {cure}", (frame,)
                )

    def _loop(self, stock: Callable, unrolled: bool) -> Callable:
        """`range` or one of its kin that counts its iterations, and tells accesses which iteration they are in."""

        def loop(*args, **kwargs):
            caller = sys._getframe(1)
            return iterate(stock(*args, **kwargs), (caller.f_code.co_filename, caller.f_lineno))

        def iterate(values, place):
            count = self.loops.setdefault(place, [0, 0])
            count[0] += 1
            turns = self._calls.turns
            for i, value in enumerate(values):
                count[1] += 1
                if not unrolled:
                    yield value
                    continue
                turns.append((i, len(values)))
                try:
                    yield value
                finally:
                    turns.pop()

        return loop

    def call_device(self, jitted, args, kwargs):
        """A call of one jit function from inside a kernel."""
        stack = self._calls.stack
        # With another constant it is another function, so recursion over a constexpr is fine.
        call = (jitted, repr([a for a in (*args, *kwargs.values()) if not hasattr(a, "handle")]))
        if call in stack:
            raise errors.Recursion(
                f"calls {jitted.fn.__name__} from inside {jitted.fn.__name__}: the compiler cannot inline a function "
                "into itself. Use a loop.",
                self.frames(),
                self.program,
            )
        function = self.function(jitted)
        stack.append(call)
        try:
            return function(*args, **kwargs)
        finally:
            stack.pop()

    @contextlib.contextmanager
    def _interpreting(self):
        """Triton's language, its builder and its jit functions, as this launch needs them; restored on the way out."""
        load_triton()
        import triton.experimental.gluon.language  # noqa: F401  copies what it finds in tl: not what is put there below
        import triton.language as tl
        from triton.runtime import interpreter, jit

        builder = self._builder = interpreter.interpreter_builder
        scope = interpreter._patch_lang(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        # Triton 3.6 converts an array of one element, which numpy 2.4 no longer allows.
        scope.set_attr(tl.core.tensor, "__index__", lambda tensor: int(tensor.handle.data.reshape(-1)[0]))
        methods, refuse = self._methods(interpreter)
        raw8 = (tl.float8e5, tl.float8e4nv, tl.float8e4b8, tl.float8e5b16, tl.float8e4b15)

        def checked(operation):
            def run(input, *args, **kwargs):
                several = input if isinstance(input, tuple) else (input,)
                narrow = [t.dtype for t in several if t.dtype == tl.bfloat16 or t.dtype in raw8]
                if not narrow:
                    return operation(input, *args, **kwargs)
                if not self.narrow_arithmetic:
                    refuse(narrow[0])
                wide = tuple(t.to(tl.float32) if t.dtype in narrow else t for t in several)
                result = operation(wide if isinstance(input, tuple) else wide[0], *args, **kwargs)
                if not isinstance(input, tuple):
                    return result.to(input.dtype)
                return tuple(r.to(t.dtype) for r, t in zip(result, several))

            return run

        for module in (tl, tl.core):
            for name in ("reduce", "associative_scan"):
                scope.set_attr(module, name, checked(getattr(module, name)))
            for name in ("range", "static_range"):
                scope.set_attr(module, name, self._loop(getattr(module, name), unrolled=name == "static_range"))
        scope.set_attr(interpreter.ReduceOps, "generic_reduce", folding.reduce)
        scope.set_attr(interpreter.ScanOps, "generic_scan", folding.scan)
        for module in {sys.modules[name] for name in _LIBDEVICE if name in sys.modules}:
            for name, value in list(vars(module).items()):
                if (ours := _on_the_host(value)) is not None:
                    scope.set_attr(module, name, ours)
        calls = {}
        for kind in (interpreter.InterpretedFunction, jit.JITFunction):
            calls[kind] = kind.__call__
            kind.__call__ = lambda jitted, *args, **kwargs: self.call_device(jitted, args, kwargs)
        before = dict(builder.__dict__)
        builder.__dict__.update(methods)
        # A check of whole numbers that asserts nothing where assertions are off, and takes a third of all time.
        builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)
        try:
            with answering(StandIn(self.target, {"multiprocessor_count": 132, "max_shared_mem": 232448})):
                yield interpreter
        finally:
            builder.__dict__.clear()
            builder.__dict__.update(before)
            for kind, call in calls.items():
                kind.__call__ = call
            scope.restore()

    def _convert(self, interpreter, name: str, value):
        import triton.language as tl
        from triton.runtime.jit import mangle_type

        if isinstance(value, tuple):
            items = [self._convert(interpreter, f"{name}[{i}]", v) for i, v in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if is_descriptor(value):
            desc = interpreter.interpreter_semantic.make_tensor_descriptor(
                base=self._convert(interpreter, name, value.base),
                shape=[self._convert(interpreter, name, s) for s in value.shape],
                strides=[*(self._convert(interpreter, name, s) for s in value.strides[:-1]), tl.constexpr(1)],
                block_shape=[tl.constexpr(b) for b in value.block_shape],
                padding_option=value.padding,
            )
            if hasattr(value, "round_f32_to_tf32"):
                desc.handle.round_f32_to_tf32 = value.round_f32_to_tf32
            return desc
        if hasattr(value, "data_ptr"):
            kind = tl.str_to_ty(mangle_type(value), None)
            return tl.tensor(interpreter.TensorHandle(np.array([self._pointer(name, value)], np.uint64), kind), kind)
        if isinstance(value, np.generic) and not isinstance(value, (float, int)):
            raise errors.LaunchError(
                f"{name} of {self.launch.name} is a numpy {type(value).__name__}, which Triton's launcher does not take. "
                f"Pass {type(value.item()).__name__}({name})."
            )
        if isinstance(value, bool):
            return tl.tensor(interpreter.TensorHandle(np.array([value]), tl.int1), tl.int1)
        if isinstance(value, float):
            return tl.tensor(interpreter.TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)
        if value is None or isinstance(value, (int, tl.constexpr, tl.dtype)):
            return interpreter._implicit_cvt(value)
        if isinstance(value, (str, list, dict, np.ndarray)):
            cure = " Pass torch.from_numpy(...) of it." if isinstance(value, np.ndarray) else ""
            raise errors.LaunchError(
                f"{name} of {self.launch.name} must be a tensor, a number or a constexpr, "
                f"got {type(value).__name__}.{cure}"
            )
        return interpreter._implicit_cvt(value)

    def _program(self, function, arguments):
        """One program. `frames` looks for this function's code object: keep the kernel's call in here."""
        self._calls.stack = [(self.launch.kernel, "")]
        self._calls.turns, self._calls.phase = [], 0
        return function(**arguments)

    def fail(self, error: Exception):
        """Turn an exception from inside the kernel into one of ours, with the learner's line."""
        if isinstance(error, errors.MachineError):
            raise error
        frames = self._frames_of(error)
        if isinstance(error, RecursionError):
            raise errors.KernelFailed("recurses without end.", frames, self.program) from error
        text = str(error) or type(error).__name__
        name = "" if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: "
        raise errors.KernelFailed(f"failed: {name}{text}", frames, self.program) from error

    @contextlib.contextmanager
    def prepared(self):
        """Everything up to the first program: yields (function, its converted arguments)."""
        launch = self.launch
        with _lock, self._interpreting() as interpreter:
            launch.prepare()
            function = self.function(launch.kernel)
            arguments = {
                name: value if name in launch.constants else self._convert(interpreter, name, value)
                for name, value in launch.values.items()
            }
            interpreter.interpreter_builder.set_grid_dim(*launch.grid)
            with np.errstate(all="ignore"):
                yield function, arguments
            for device, host in self._hosts.values():
                if device is not host and not self.scratch:
                    device.copy_(host)

    def run(self, every: int = 1, order: Iterable[int] | None = None):
        """The programs of the grid, one after another, in the interpreter's order (z fastest).

        Args:
            every: run only each so-manyth of them, for a sample of a big launch.
            order: the programs to run instead, by number; asked for each when the one before it has run.

        Raises:
            KernelError: something inside the kernel is wrong; tensors keep what earlier accesses wrote.
        """
        with self.prepared() as (function, arguments):
            for index in order if order is not None else range(0, self.launch.programs, every):
                self._builder.set_grid_idx(*(int(i) for i in np.unravel_index(index, self.launch.grid)))
                try:
                    self._program(function, arguments)
                except Exception as error:
                    self.fail(error)


@functools.cache
def _libdevice_functions() -> dict[str, Any]:
    """libdevice's functions as the interpreter needs them: bound to what builds values."""
    from triton.language.extra.cuda import libdevice as cuda
    from triton.runtime.interpreter import interpreter_semantic

    return {
        name: functools.partial(function, _semantic=interpreter_semantic)
        for name, function in vars(cuda).items()
        if getattr(function, "__module__", None) == cuda.__name__
    }


def _on_the_host(value):
    """What stands for a libdevice function, or for the module of them, while a kernel is interpreted; None for others."""
    if isinstance(value, types.ModuleType) and value.__name__ in _LIBDEVICE:
        return types.SimpleNamespace(**_libdevice_functions())
    if isinstance(value, types.FunctionType) and value.__module__ in _LIBDEVICE:
        return _libdevice_functions().get(value.__name__)
    return None


def _rtne(interpreter):
    return interpreter._ir.ROUNDING_MODE.RTNE
