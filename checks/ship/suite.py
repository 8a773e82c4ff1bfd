"""What a multi-scale deformable attention operator has to do before it is shipped. Needs torch, and nothing of ours.

Each test takes the operator, anything with `check_inputs`, `MSDAFunction` and `MyMSDeformAttn`, and a device; it raises
AssertionError where something does not hold, and `NotHere` where it cannot be tried. The acceptance suite runs them, and an
exported package carries this file along with those that it passed.

Truth is computed here, in float64, by torch's own `grid_sample`.
"""

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

__all__ = ["NotHere", "TESTS"]

WIDTHS = (30, 32, 64, 71, 1025, 2048, 3096)  # ViT-Adapter's gradcheck failed at some of them
BATCHES = (3, 5, 7)  # the CUDA operator of Deformable DETR asks for a batch that im2col_step divides


class NotHere(Exception):
    """A test that cannot be tried here; the message says why."""


TESTS = {}


def test(function):
    """Enter a function into the suite, under its own name."""
    TESTS[function.__name__] = function
    return function


def title(name: str) -> str:
    """What a test asks for, in a sentence."""
    return TESTS[name].__doc__.strip().splitlines()[0].rstrip(".")


def truth(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, attention: Tensor) -> Tensor:
    """The operator on `grid_sample`, in float64, differentiable."""
    value, locations, attention = value.double(), locations.double(), attention.double()
    B, _, M, D = value.shape
    Q, K = attention.shape[1], attention.shape[-1]
    out = value.new_zeros(B, Q, M, D)
    for level, ((H, W), start) in enumerate(zip(shapes.tolist(), starts.tolist())):
        image = value[:, start : start + H * W].permute(0, 2, 3, 1).reshape(B * M, D, H, W)
        grid = torch.nan_to_num(2 * locations[:, :, :, level] - 1, nan=-9.0, posinf=9.0, neginf=-9.0).clamp(-9.0, 9.0)
        sample = grid_sample(image, grid.transpose(1, 2).reshape(B * M, Q, K, 2), align_corners=False)
        sample = sample.reshape(B, M, D, Q, K).permute(0, 3, 1, 2, 4)
        out = out + (sample * attention[:, :, :, level, None]).sum(-1)
    return out.reshape(B, Q, M * D)


def make(shapes=((3, 5), (2, 4)), *, B=1, Q=1, M=1, D=4, K=2, dtype=torch.float32, seed=0) -> list[Tensor]:
    """The five arguments of a call, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.tensor(shapes)
    pixels = table.prod(1)
    rand = lambda *size: torch.rand(size, generator=generator)  # noqa: E731
    return [
        torch.randn(B, int(pixels.sum()), M, D, generator=generator).to(dtype),
        table,
        pixels.cumsum(0) - pixels,
        1.4 * rand(B, Q, M, len(shapes), K, 2) - 0.2,
        (0.5 * rand(B, Q, M, len(shapes), K)).to(dtype),
    ]


def both_ways(op, call: list[Tensor], device: str, grad_out: Tensor | None = None) -> list[Tensor]:
    """The output and the three gradients, by way of the front door."""
    value, shapes, starts, locations, attention = (t.to(device) for t in call)
    leaves = [t.detach().requires_grad_() for t in (value, locations, attention)]
    args = (leaves[0], shapes, starts, *leaves[1:])
    assert op.check_inputs(*args) is None, "the front door returns something"
    out = op.MSDAFunction.apply(*args)
    grad_out = torch.ones_like(out) if grad_out is None else grad_out.to(device)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]


def agree(op, call: list[Tensor], device: str, seed: int = 1) -> None:
    """Output and gradients equal the truth, to the rounding of their dtype."""
    value, shapes, starts, locations, attention = call
    grad_out = torch.randn(
        value.shape[0],
        attention.shape[1],
        value.shape[2] * value.shape[3],
        generator=torch.Generator().manual_seed(seed),
    ).to(value.dtype)
    got = both_ways(op, call, device, grad_out)
    leaves = [t.double().requires_grad_() for t in (value, locations, attention)]
    out = truth(leaves[0], shapes, starts, *leaves[1:])
    wanted = [out.detach(), *torch.autograd.grad(out, leaves, grad_out.double())]
    like = (value, value, locations, attention)
    for name, mine, right, kind in zip(("output", "grad_value", "grad_locations", "grad_weights"), got, wanted, like):
        assert mine.shape == right.shape, f"{name} has shape {tuple(mine.shape)}, expected {tuple(right.shape)}"
        assert mine.dtype == kind.dtype, f"{name} is {mine.dtype}, expected {kind.dtype}"
        if not right.numel():
            continue
        summed = 4 if name == "grad_value" else 1  # additions that round to the dtype
        scale = right.abs().max().item()
        bound = (summed * torch.finfo(mine.dtype).eps + 64 * torch.finfo(torch.float32).eps) * max(scale, 1e-3)
        error = (mine.cpu().double() - right).abs().max().item()
        assert error <= bound, f"{name} is off by {error:.2e}, allowed are {bound:.2e}"


def _width(D: int):
    def one(op, device: str) -> None:
        agree(op, make(D=D, seed=D), device)

    one.__name__, one.__doc__ = f"width_{D}", f"Output and gradients are right with {D} channels a head."
    return one


for _D in WIDTHS:
    test(_width(_D))


@test
def any_batch(op, device: str) -> None:
    """Batches of 3, 5 and 7, which no im2col_step divides, are right."""
    for B in BATCHES:
        agree(op, make([(3, 4)], B=B, D=3, K=2, seed=B), device)


@test
def many_of_everything(op, device: str) -> None:
    """Several images, queries, heads, levels and points at once are right."""
    agree(op, make([(4, 3), (2, 5), (1, 2)], B=2, Q=3, M=2, D=6, K=3, seed=5), device)


@test
def thirteen_points(op, device: str) -> None:
    """Thirteen points a level, which is no power of two, are right."""
    agree(op, make([(5, 3)], Q=2, D=5, K=13, seed=6), device)


@test
def gaps_between_levels(op, device: str) -> None:
    """Levels that do not lie one after another are read where they are."""
    call = make(D=4, seed=7)
    call[0], call[2] = torch.randn(1, 40, 1, 4, generator=torch.Generator().manual_seed(8)), torch.tensor([2, 20])
    agree(op, call, device)


@test
def any_strides(op, device: str) -> None:
    """Inputs and grad_out with strides of their own are right."""
    call = make(Q=2, M=2, D=4, seed=9)
    straight = both_ways(op, call, device)
    for at in (0, 3, 4):
        call[at] = call[at].transpose(1, 2).contiguous().transpose(1, 2)
    strided = both_ways(op, call, device, torch.ones(()).expand(1, 2, 8))
    for one, other in zip(straight, strided):
        assert torch.allclose(one, other, atol=1e-5), "strides change the result"


@test
def nothing_asked(op, device: str) -> None:
    """No query, or no image: an empty result that is attached, and a gradient of zeros."""
    for B, Q in ((2, 0), (0, 2)):
        out, grad_value, _, _ = both_ways(op, make(B=B, Q=Q), device)
        assert out.shape == (B, Q, 4), f"the output has shape {tuple(out.shape)}, expected {(B, Q, 4)}"
        assert not grad_value.any(), "grad_value is not zero"


@test
def nowhere(op, device: str) -> None:
    """Points outside, at infinity or not a number read zeros and harm nobody."""
    call = make(Q=1, K=4, seed=10)
    call[3][0, 0, 0, 0] = torch.tensor([[float("nan"), 0.5], [float("inf"), 0.5], [-3e9, 0.4], [0.3, 0.6]])
    got = both_ways(op, call, device)
    assert all(t.isfinite().all() for t in (got[0], got[1])), "the output or grad_value is not finite"
    out = truth(*call)
    assert torch.allclose(got[0].cpu().double(), out, atol=1e-5), "the output is not what the other points give"


@test
def half_precision(op, device: str) -> None:
    """float16 value with float32 locations is computed in float32 and rounded once."""
    agree(op, make(Q=1, D=8, dtype=torch.float16, seed=11), device)


@test
def brain_float(op, device: str) -> None:
    """bfloat16 value with float32 locations is computed in float32 and rounded once."""
    if device == "cpu" and not getattr(op, "emulates_bfloat16", False):
        raise NotHere("Triton's interpreter computes bfloat16 wrongly; it takes a GPU, or the course's machine.")
    agree(op, make(Q=1, D=8, dtype=torch.bfloat16, seed=12), device)


@test
def bad_calls(op, device: str) -> None:
    """Bad calls are refused with a ValueError that names the argument, before any kernel."""
    spoilers = {
        "value": (0, lambda t: t.flatten(2)),
        "sampling_locations": (3, lambda t: t[..., 0]),
        "attention_weights": (4, lambda t: t.flatten(3)),
        "spatial_shapes": (1, lambda t: t + torch.tensor([[0, 0], [1, 0]])),
        "level_start_index": (2, lambda t: t.float()),
    }
    for name, (at, spoil) in spoilers.items():
        call = make(Q=2)
        call[at] = spoil(call[at])
        try:
            op.check_inputs(*(t.to(device) for t in call))
        except ValueError as error:
            assert name in str(error), f"a bad {name} is refused without being named: {error}"
        else:
            raise AssertionError(f"a bad {name} was let through")


@test
def differentiable_once(op, device: str) -> None:
    """A second derivative is an error, not zeros."""
    value, shapes, starts, locations, attention = (t.to(device) for t in make(Q=1))
    locations.requires_grad_()
    out = op.MSDAFunction.apply(value, shapes, starts, locations, attention)
    (slope,) = torch.autograd.grad(out.square().sum(), locations, create_graph=True)
    assert slope.requires_grad, "the gradient of a gradient is taken for zero"
    try:
        slope.square().sum().backward()
    except RuntimeError as error:
        assert "once_differentiable" in str(error), str(error)
    else:
        raise AssertionError("a second derivative came out")


@test
def layer_learns(op, device: str) -> None:
    """The layer has the right shape, and every parameter of it gets a gradient."""
    torch.manual_seed(13)
    layer = op.MyMSDeformAttn(8, 2, 2, 2).to(device)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    _, shapes, starts, _, _ = (t.to(device) for t in make())
    pixels, query = torch.randn(1, 23, 8, device=device), torch.randn(1, 2, 8, device=device)
    points = torch.full((1, 2, 2, 2), 0.45, device=device)
    out = layer(query, points, pixels, shapes, starts, torch.zeros(1, 23, dtype=torch.bool, device=device))
    assert out.shape == (1, 2, 8), f"the layer gives {tuple(out.shape)}, expected (1, 2, 8)"
    out.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, f"{name} gets no gradient"


@test
def beyond_int32(op, device: str) -> None:
    """An element that 32 bits cannot count is read and written where it is."""
    if not device.startswith("cuda"):
        raise NotHere("needs a CUDA GPU with 16 GB free: 2^31 elements are 4.3 GB, twice.")
    if torch.cuda.mem_get_info()[0] < 16e9:
        raise NotHere(f"needs 16 GB of free GPU memory, found {torch.cuda.mem_get_info()[0] / 1e9:.0f} GB.")
    S, M, D = 22_223, 8, 32  # a pyramid of 800 x 1333, at Deformable DETR's sizes
    B = 2**31 // (S * M * D) + 2
    call = make([(100, 167), (50, 84), (25, 42), (13, 21)], B=1, Q=8, M=M, D=D, K=4, dtype=torch.float16, seed=14)
    value, shapes, starts, locations, attention = (t.to(device) for t in call)
    small = both_ways(op, call, device)
    big = torch.zeros(B, S, M, D, dtype=torch.float16, device=device)
    big[-1] = value[0]
    big.requires_grad_()
    out = op.MSDAFunction.apply(
        big, shapes, starts, locations.expand(B, -1, -1, -1, -1, -1), attention.expand(B, -1, -1, -1, -1)
    )
    assert torch.equal(out[-1], small[0][0]), "the last image is read from somewhere else"
    out[-1].sum().backward()
    assert torch.allclose(big.grad[-1].float(), small[1][0].float(), atol=2e-2), "its gradient is written elsewhere"
    assert not big.grad[:-1].any(), "a gradient of the last image is written to another"


@test
def another_gpu(op, device: str) -> None:
    """On a GPU that is not the current one, the kernels run where the tensors are."""
    if not device.startswith("cuda") or torch.cuda.device_count() < 2:
        raise NotHere(f"needs two CUDA GPUs, found {torch.cuda.device_count()}.")
    agree(op, make(Q=2, M=2, D=8, seed=15), "cuda:1")
