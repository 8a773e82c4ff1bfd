"""CUDA's libdevice functions in numpy, for kernels that call `tl.extra.libdevice`.

A function is named by its symbol, "__nv_rsqrtf" or "__nv_rsqrt"; the values agree with CUDA's to rounding of the last
few bits, which is what CUDA promises too. The approximate versions ("__nv_fast_…") give the exact values.

Source: NVIDIA, libdevice user's guide; the functions of one name differ only in their types.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from msda_core.machine.errors import Unsupported

__all__ = ["SYMBOLS", "apply"]


def _torch(function):
    """A torch function over numpy arrays, in float64."""
    return lambda *xs: function(*(torch.from_numpy(np.array(x, np.float64)) for x in xs)).numpy()


def _special(name):
    return _torch(getattr(torch.special, name))


def _elementwise(function):
    """A scalar function of `math`; what it refuses is NaN."""

    def one(*xs):
        try:
            return function(*xs)
        except (ValueError, OverflowError):
            return math.nan

    return np.vectorize(one, otypes=[np.float64])


def _round_away(x):
    """Halves away from zero, as C's round."""
    return np.trunc(x + np.copysign(np.where(np.abs(x) < 2**52, 0.5, 0.0), x))


def _unsigned(x):
    return x.view(f"u{x.dtype.itemsize}")


def _bits(x):
    return np.unpackbits(np.ascontiguousarray(_unsigned(x).astype(f">u{x.dtype.itemsize}")).view(np.uint8)).reshape(
        *x.shape, 8 * x.dtype.itemsize
    )


def _leading_zeros(x):
    bits = _bits(x)
    return np.where(bits.any(-1), bits.argmax(-1), bits.shape[-1])


def _first_set(x):
    bits = _bits(x)[..., ::-1]
    return np.where(bits.any(-1), bits.argmax(-1) + 1, 0)


def _reverse(x):
    bits = np.packbits(_bits(x)[..., ::-1], axis=-1)
    return np.ascontiguousarray(bits).view(f">u{x.dtype.itemsize}")[..., 0].astype(f"u{x.dtype.itemsize}").view(x.dtype)


def _high(x, y):
    """The upper half of a product."""
    wide = x.astype(object) * y.astype(object)
    return np.array(wide >> (8 * x.dtype.itemsize), dtype=object).astype(x.dtype)


def _round_to(dtype):
    return lambda x: np.rint(x).astype(dtype)


_SQRT_HALF_PI = math.sqrt(2 * math.pi)

#: Base name of a symbol -> what it computes; floats arrive as float64.
_FLOAT = {
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil, "copysign": np.copysign, "cos": np.cos,
    "cosh": np.cosh, "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)), "cyl_bessel_i0": _special("i0"),
    "cyl_bessel_i1": _special("i1"), "dadd": np.add, "ddiv": np.divide, "div": np.divide, "dmul": np.multiply,
    "drcp": lambda x: 1 / x, "dsqrt": np.sqrt, "dsub": np.subtract, "erf": _special("erf"), "erfc": _special("erfc"),
    "erfcinv": lambda x: _special("erfinv")(1 - x), "erfcx": _special("erfcx"), "erfinv": _special("erfinv"),
    "exp": np.exp, "exp10": lambda x: np.power(10.0, x), "exp2": np.exp2, "expm1": np.expm1, "fabs": np.abs,
    "fadd": np.add, "fdim": lambda x, y: np.maximum(x - y, 0), "fdiv": np.divide, "fdivide": np.divide,
    "floor": np.floor, "fma": lambda x, y, z: x * y + z, "fmax": np.fmax, "fmaf": lambda x, y, z: x * y + z,
    "fmin": np.fmin, "fmod": np.fmod, "fmul": np.multiply, "frcp": lambda x: 1 / x, "frsqrt": lambda x: 1 / np.sqrt(x),
    "fsqrt": np.sqrt, "fsub": np.subtract, "hypot": np.hypot, "j0": _special("bessel_j0"), "j1": _special("bessel_j1"),
    "lgamma": _torch(torch.lgamma), "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2,
    "logb": lambda x: np.floor(np.log2(np.abs(x))), "max": np.fmax, "min": np.fmin, "nearbyint": np.rint,
    "norm3d": lambda x, y, z: np.sqrt(x * x + y * y + z * z),
    "norm4d": lambda x, y, z, w: np.sqrt(x * x + y * y + z * z + w * w), "normcdf": _special("ndtr"),
    "normcdfinv": _special("ndtri"), "pow": np.power, "rcbrt": lambda x: 1 / np.cbrt(x),
    "remainder": _elementwise(math.remainder), "rhypot": lambda x, y: 1 / np.hypot(x, y), "rint": np.rint,
    "rnorm3d": lambda x, y, z: 1 / np.sqrt(x * x + y * y + z * z), "round": _round_away,
    "rnorm4d": lambda x, y, z, w: 1 / np.sqrt(x * x + y * y + z * z + w * w),
    "rsqrt": lambda x: 1 / np.sqrt(x), "saturate": lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0, 1), "sin": np.sin,
    "sinh": np.sinh, "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)), "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "tgamma": _elementwise(math.gamma), "trunc": np.trunc, "y0": _special("bessel_y0"), "y1": _special("bessel_y1"),
    "isnan": np.isnan, "isinf": np.isinf, "isfinited": np.isfinite, "finite": np.isfinite, "signbit": np.signbit,
    "ilogb": lambda x: np.floor(np.log2(np.abs(x))), "llrint": np.rint, "llround": _round_away,
    "ldexp": lambda x, n: np.ldexp(x, n.astype(np.int64)), "scalbn": lambda x, n: np.ldexp(x, n.astype(np.int64)),
    "powi": np.power, "nextafter": np.nextafter,
}  # fmt: skip

_INTEGER: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "brev": _reverse, "clz": _leading_zeros, "ffs": _first_set, "hadd": lambda x, y: (x & y) + ((x ^ y) >> 1),
    "max": np.maximum, "min": np.minimum, "mul24": lambda x, y: ((x << 8) >> 8) * ((y << 8) >> 8), "mulhi": _high,
    "popc": lambda x: _bits(x).sum(-1), "rhadd": lambda x, y: (x | y) - ((x ^ y) >> 1),
    "sad": lambda x, y, z: np.abs(x.astype(np.int64) - y) + z,
}  # fmt: skip

#: Names with the types in the middle or in front, by their own name.
_NAMED = {
    "umulhi": "mulhi", "mul64hi": "mulhi", "umul64hi": "mulhi", "umul24": "mul24", "uhadd": "hadd", "urhadd": "rhadd",
    "usad": "sad", "llabs": "abs", "llmax": "max", "llmin": "min", "ullmax": "max", "ullmin": "min", "umax": "max",
    "umin": "min", "clzll": "clz", "brevll": "brev", "popcll": "popc", "ffsll": "ffs", "isinfd": "isinf",
    "isnand": "isnan", "signbitd": "signbit", "finitef": "finite", "isfinited": "isfinited",
}  # fmt: skip


def _bit_cast(kind):
    return lambda x: x.view(kind)


#: Conversions between bits and numbers, which look at the type and not at the value.
_EXACT = {
    "float_as_int": _bit_cast(np.int32), "float_as_uint": _bit_cast(np.uint32), "int_as_float": _bit_cast(np.float32),
    "uint_as_float": _bit_cast(np.float32), "double_as_longlong": _bit_cast(np.int64),
    "longlong_as_double": _bit_cast(np.float64),
}  # fmt: skip

SYMBOLS = sorted({*_FLOAT, *_INTEGER, *_EXACT})
_ROUNDING = ("_rn", "_rz", "_rd", "_ru")


def _nearest_then(rounding, values, kind):
    """A float64 result, rounded to a narrower type in the direction that the symbol's ending names."""
    near = values.astype(kind)
    if rounding in ("", "_rn") or not np.issubdtype(kind, np.floating):
        return near
    wide, towards = near.astype(np.float64), {"_rd": -np.inf, "_ru": np.inf, "_rz": 0.0}[rounding]
    over = (
        (wide > values)
        if rounding == "_rd"
        else (wide < values)
        if rounding == "_ru"
        else np.abs(wide) > np.abs(values)
    )
    return np.where(over, np.nextafter(near, np.array(towards, kind)), near).astype(kind)


def apply(symbol: str, arrays: list[np.ndarray], kind: np.dtype) -> np.ndarray:
    """What a libdevice function gives.

    Args:
        symbol: its name in the library, "__nv_rsqrtf".
        arrays: its arguments, of one shape; kind: the type of its result.

    Raises:
        Unsupported: a function that is not written here; names it.
    """
    name, rounding = symbol.removeprefix("__nv_").removeprefix("fast_"), ""
    if name in _EXACT:
        return _EXACT[name](np.ascontiguousarray(arrays[0]))
    for ending in _ROUNDING:
        if name.endswith(ending):
            name, rounding = name.removesuffix(ending), ending
    convert = name.split("2", 1) if "2" in name and name.split("2", 1)[0] in _TYPES else None
    if convert and convert[1] in _TYPES:
        directed = {"_rn": np.rint, "_rz": np.trunc, "_rd": np.floor, "_ru": np.ceil}.get(rounding)
        x = arrays[0].astype(np.float64) if np.issubdtype(arrays[0].dtype, np.floating) else arrays[0]
        return (
            directed(x).astype(kind)
            if directed and np.issubdtype(kind, np.integer)
            else _nearest_then(rounding, x, kind)
        )
    base = _NAMED.get(name, name)
    if all(a.dtype.kind in "iub" for a in arrays) and base in _INTEGER:
        return np.asarray(_INTEGER[base](*arrays)).astype(kind)
    for candidate in (base, base.removesuffix("f"), base.removesuffix("ff")):
        if candidate in _FLOAT:
            with np.errstate(all="ignore"):
                result = _FLOAT[candidate](*(a.astype(np.float64) for a in arrays))
            return _nearest_then(rounding, np.asarray(result), kind)
    raise Unsupported(f"libdevice.{name} ({symbol}) is not among the functions that can be run on a host.")


_TYPES = {"float", "double", "int", "uint", "ll", "ull", "half"}
