"""The modules against formulas written out by hand, one query, head, level and point at a time."""

import math

import pytest
import torch

from msda_core.nn import MSDeformAttn, MSDeformAttn3D, SpatialCrossAttention, TemporalSelfAttention
from msda_core.reference import bilinear_sample

LEVELS = [(4, 6), (3, 2)]
STARTS = [0, 24]
S = 30


def shake(module, seed=0):
    """Random parameters, so that no term of the formula is zero; offsets of a pixel or two."""
    g = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g) * 0.4
    return module.double().eval().requires_grad_(False)


def linear(layer, x):
    return x @ layer.weight.T + layer.bias


def attend(value, levels, starts, places, weights):
    """value (S, M, D); places[m][l][k] = (x, y) in pixels; weights (M, L, K) → (M*D,)."""
    heads = []
    for m in range(value.shape[1]):
        total = torch.zeros(value.shape[2], dtype=value.dtype)
        for l, ((H, W), start) in enumerate(zip(levels, starts)):
            image = value[start : start + H * W, m].reshape(H, W, -1)
            for k, (x, y) in enumerate(places[m][l]):
                total = total + weights[m, l, k] * bilinear_sample(image, float(x), float(y))
        heads.append(total)
    return torch.cat(heads)


def offsets_and_weights(module, query, queue=1):
    M, L, K = module.n_heads, module.n_levels, module.n_points
    offsets = linear(module.sampling_offsets, query).reshape(M, queue, L, K, 2)
    weights = linear(module.attention_weights, query).reshape(M, queue, L * K).exp()
    return offsets, (weights / weights.sum(-1, keepdim=True)).reshape(M, queue, L, K)


def by_hand(module, query, reference_points, value, mask=None):
    """MSDeformAttn for one batch item: (Q, C), (Q, L, 2 or 4), (S, C)."""
    M, L, K = module.n_heads, module.n_levels, module.n_points
    value = linear(module.value_proj, value)
    if mask is not None:
        value = value * ~mask[:, None]
    value = value.reshape(S, M, -1)
    rows = []
    for q in range(len(query)):
        offsets, weights = offsets_and_weights(module, query[q])
        places = [[[] for _ in range(L)] for _ in range(M)]
        for m in range(M):
            for l, (H, W) in enumerate(LEVELS):
                for k in range(K):
                    x, y, *size = reference_points[q, l]
                    dx, dy = offsets[m, 0, l, k]
                    if size:
                        x, y = x + dx / K * size[0] / 2, y + dy / K * size[1] / 2
                        places[m][l].append((x * W - 0.5, y * H - 0.5))
                    else:  # an offset is in pixels
                        places[m][l].append((x * W + dx - 0.5, y * H + dy - 0.5))
        rows.append(attend(value, LEVELS, STARTS, places, weights[:, 0]))
    return linear(module.output_proj, torch.stack(rows))


@pytest.fixture
def inputs():
    g = torch.Generator().manual_seed(1)
    query = torch.randn(2, 3, 12, generator=g, dtype=torch.float64)
    value = torch.randn(2, S, 12, generator=g, dtype=torch.float64)
    reference = torch.rand(2, 3, 2, 4, generator=g, dtype=torch.float64)
    mask = torch.rand(2, S, generator=g) < 0.3
    return query, value, reference, mask


@pytest.mark.parametrize("dims", [2, 4])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("tables", ["lists", "tensors"])
def test_deformable_attention(inputs, dims, padded, tables):
    query, value, reference, mask = inputs
    module = shake(MSDeformAttn(12, n_levels=2, n_heads=3, n_points=4))
    shapes, starts = (LEVELS, None) if tables == "lists" else (torch.tensor(LEVELS), torch.tensor(STARTS))
    out = module(query, reference[..., :dims], value, shapes, starts, mask if padded else None)
    for b in range(2):
        expected = by_hand(module, query[b], reference[b, ..., :dims], value[b], mask[b] if padded else None)
        torch.testing.assert_close(out[b], expected, rtol=1e-9, atol=1e-9)


def test_state_dict_follows_deformable_detr():
    shapes = {name: tuple(p.shape) for name, p in MSDeformAttn(256, 4, 8, 4).state_dict().items()}
    assert shapes == {
        "sampling_offsets.weight": (256, 256), "sampling_offsets.bias": (256,),
        "attention_weights.weight": (128, 256), "attention_weights.bias": (128,),
        "value_proj.weight": (256, 256), "value_proj.bias": (256,),
        "output_proj.weight": (256, 256), "output_proj.bias": (256,),
    }  # fmt: skip
    assert set(MSDeformAttn3D(32, 1, 4, 8).state_dict()) == {n for n in shapes if not n.startswith("output_proj")}
    assert set(SpatialCrossAttention(32, 1, 4, 8).state_dict()) == {
        *(f"deformable_attention.{n}" for n in shapes if not n.startswith("output_proj")),
        "output_proj.weight", "output_proj.bias",
    }  # fmt: skip
    temporal = TemporalSelfAttention(32, 1, 4, 4).state_dict()
    assert set(temporal) == set(shapes)
    assert temporal["sampling_offsets.weight"].shape == (2 * 4 * 1 * 4 * 2, 64)


def test_initial_offsets_are_a_ring_and_weights_uniform():
    module = MSDeformAttn(32, n_levels=2, n_heads=8, n_points=3)
    offsets, weights = offsets_and_weights(module, torch.randn(32))
    for m in range(8):
        angle = 2 * math.pi * m / 8
        side = max(abs(math.cos(angle)), abs(math.sin(angle)))
        for k in range(3):
            expected = torch.tensor([math.cos(angle), math.sin(angle)]) / side * (k + 1)
            for l in range(2):
                torch.testing.assert_close(offsets[m, 0, l, k], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / 6))
    assert (module.value_proj.bias == 0).all() and (module.output_proj.bias == 0).all()
    assert module.value_proj.weight.abs().max() <= math.sqrt(6 / 64)


def pillars_by_hand(module, query, anchors, value):
    """MSDeformAttn3D without its output projection, one batch item: (Q, C), (Q, Z, 2), (S, C)."""
    M, K, Z = module.n_heads, module.n_points, anchors.shape[1]
    value = linear(module.value_proj, value).reshape(S, M, -1)
    rows = []
    for q in range(len(query)):
        offsets, weights = offsets_and_weights(module, query[q])
        places = [
            [
                [
                    (
                        anchors[q, p % Z, 0] * W + offsets[m, 0, l, p, 0] - 0.5,
                        anchors[q, p % Z, 1] * H + offsets[m, 0, l, p, 1] - 0.5,
                    )
                    for p in range(K)
                ]
                for l, (H, W) in enumerate(LEVELS)
            ]
            for m in range(M)
        ]
        rows.append(attend(value, LEVELS, STARTS, places, weights[:, 0]))
    return torch.stack(rows)


def test_point_p_starts_from_anchor_p_mod_z(inputs):
    query, value, _, _ = inputs
    module = shake(MSDeformAttn3D(12, n_levels=2, n_heads=3, n_points=6, output_proj=True))
    anchors = torch.rand(2, 3, 3, 2, dtype=torch.float64)
    out = module(query, anchors, value, LEVELS)
    for b in range(2):
        expected = linear(module.output_proj, pillars_by_hand(module, query[b], anchors[b], value[b]))
        torch.testing.assert_close(out[b], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("with_position", [False, True])
def test_spatial_cross_attention(inputs, with_position):
    g = torch.Generator().manual_seed(2)
    B, N, Q, Z, C = 2, 3, 4, 2, 12
    module = shake(SpatialCrossAttention(C, n_levels=2, n_heads=3, n_points=4))
    query = torch.randn(B, Q, C, generator=g, dtype=torch.float64)
    position = (
        torch.randn(B, Q, C, generator=g, dtype=torch.float64) if with_position else torch.zeros(B, Q, C).double()
    )
    value = torch.randn(B, N, S, C, generator=g, dtype=torch.float64)
    anchors = torch.rand(B, N, Q, Z, 2, generator=g, dtype=torch.float64)
    seen = torch.rand(B, N, Q, Z, generator=g) < 0.4
    seen[:, :, 1] = False  # a pillar no camera sees
    out = module(query, anchors, seen, value, LEVELS, query_pos=position if with_position else None)
    for b in range(B):
        for q in range(Q):
            total, cameras = torch.zeros(C, dtype=torch.float64), 0
            for n in range(N):
                if seen[b, n, q].any():
                    one = pillars_by_hand(
                        module.deformable_attention, (query + position)[b, q : q + 1], anchors[b, n, q : q + 1],
                        value[b, n],
                    )  # fmt: skip
                    total, cameras = total + one[0], cameras + 1
            expected = linear(module.output_proj, total / max(cameras, 1)) + query[b, q]
            torch.testing.assert_close(out[b, q], expected, rtol=1e-9, atol=1e-9)


def test_spatial_cross_attention_where_nothing_is_seen():
    module = SpatialCrossAttention(12, 2, 3, 4).eval()
    query = torch.randn(1, 2, 12, requires_grad=True)
    out = module(
        query, torch.rand(1, 2, 2, 2, 2), torch.zeros(1, 2, 2, 2, dtype=torch.bool), torch.randn(1, 2, S, 12), LEVELS
    )
    torch.testing.assert_close(out, query + module.output_proj.bias)
    out.sum().backward()


@pytest.mark.parametrize("first_frame", [False, True])
@pytest.mark.parametrize("dims", [2, 4])
def test_temporal_self_attention(first_frame, dims):
    g = torch.Generator().manual_seed(4)
    B, (H, W), C, M, K = 2, (3, 4), 12, 3, 2
    Q = H * W
    module = shake(TemporalSelfAttention(C, 1, M, K))
    query, previous, position = (torch.randn(B, Q, C, generator=g, dtype=torch.float64) for _ in range(3))
    points = torch.rand(B, 2, Q, 1, dims, generator=g, dtype=torch.float64)
    out = module(query, None if first_frame else previous, points, [(H, W)], query_pos=position)
    past = query if first_frame else previous
    for b in range(B):
        frames = [linear(module.value_proj, f[b]).reshape(Q, M, -1) for f in (past, query)]
        for q in range(0, Q, 5):
            offsets, weights = offsets_and_weights(module, torch.cat([past[b, q], query[b, q] + position[b, q]]), 2)
            mean = torch.zeros(C, dtype=torch.float64)
            for n, frame in enumerate(frames):
                x, y, *size = points[b, n, q, 0]
                wide, high = (size[0] / 2 / K * W, size[1] / 2 / K * H) if size else (1, 1)
                places = [
                    [[(x * W + d[0] * wide - 0.5, y * H + d[1] * high - 0.5) for d in offsets[m, n, 0]]]
                    for m in range(M)
                ]
                mean = mean + attend(frame, [(H, W)], [0], places, weights[:, n]) / 2
            expected = linear(module.output_proj, mean) + query[b, q]
            torch.testing.assert_close(out[b, q], expected, rtol=1e-9, atol=1e-9)


def test_a_half_module_still_locates_in_float32(monkeypatch):
    from msda_core.ops import raw

    seen = {}

    def spy(value, shapes, starts, locations, weights, **sums):
        seen.update(value=value.dtype, locations=locations.dtype)
        return value.new_zeros(value.shape[0], locations.shape[1], value.shape[2] * value.shape[3])

    monkeypatch.setattr(raw, "multi_scale_deformable_attention", spy)
    module = MSDeformAttn(12, 2, 3, 4).bfloat16()
    module(torch.randn(1, 2, 12).bfloat16(), torch.rand(1, 2, 2, 2), torch.randn(1, S, 12).bfloat16(), LEVELS)
    assert seen == dict(value=torch.bfloat16, locations=torch.float32)


@pytest.mark.parametrize("kind", [MSDeformAttn, MSDeformAttn3D, TemporalSelfAttention, SpatialCrossAttention])
def test_every_layer_says_how_its_gradient_is_summed(monkeypatch, kind):
    import msda_core.nn
    from msda_core.ops import raw

    seen = []

    def spy(value, shapes, starts, locations, weights, **sums):
        seen.append(sums)
        return value.new_zeros(value.shape[0], locations.shape[1], value.shape[2] * value.shape[3])

    for module in (msda_core.nn, raw):
        monkeypatch.setattr(module, "multi_scale_deformable_attention", spy)
    module = kind(12, 2, 3, 4, fp32_grad_accum=True, deterministic=False)
    query, value = torch.randn(1, 2, 12), torch.randn(1, S, 12)
    if kind is TemporalSelfAttention:
        query = torch.randn(1, S, 12)
        module(query, None, torch.rand(1, 2, S, 2, 2), LEVELS)
    elif kind is SpatialCrossAttention:
        module(query, torch.rand(1, 1, 2, 4, 2), torch.ones(1, 1, 2, 4, dtype=torch.bool), value[:, None], LEVELS)
    else:
        module(query, torch.rand(1, 2, 2, 2), value, LEVELS)
    assert seen == [dict(fp32_grad_accum=True, deterministic=False)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dims", [2, 4])
def test_a_reference_point_that_is_no_place(inputs, dims, bad):
    """A fully padded level divides by a valid ratio of zero (Deformable-DETR #36): silent, finite, and harmless."""
    query, value, reference, _ = inputs
    module = shake(MSDeformAttn(12, n_levels=2, n_heads=3, n_points=4)).requires_grad_(True)
    reference = reference[..., :dims].clone()
    reference[0, 1, 1, dims - 1] = bad
    out = module(query.requires_grad_(), reference, value, LEVELS)
    outside = reference.clone()
    outside[0, 1, 1, :2] = -99.0
    outside[0, 1, 1, 2:] = 0.0
    torch.testing.assert_close(out, module(query, outside, value, LEVELS))
    out.sum().backward()
    assert all(t.grad.isfinite().all() for t in (query, *module.parameters()))


def test_under_autocast():
    module = MSDeformAttn(12, 2, 3, 4)
    query, value = torch.randn(1, 2, 12, requires_grad=True), torch.randn(1, S, 12, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(query, torch.rand(1, 2, 2, 2), value, LEVELS)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert query.grad.isfinite().all() and value.grad.isfinite().all()


@pytest.mark.parametrize("form", ["compile", "export"])
def test_traces_whole(form):
    module = MSDeformAttn(12, 2, 3, 4).eval()
    args = (torch.randn(1, 2, 12), torch.rand(1, 2, 2, 2), torch.randn(1, S, 12), torch.tensor(LEVELS))
    expected = module(*args)
    if form == "compile":
        out = torch.compile(module, fullgraph=True, backend="aot_eager")(*args)
    else:
        out = torch.export.export(module, args).module()(*args)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: MSDeformAttn(250, 4, 8, 4), r"d_model must be divisible by n_heads, got d_model = 250 and n_heads = 8"),
        (
            lambda: MSDeformAttn(12, 2, 3, 4)(torch.randn(1, 2, 12), torch.rand(1, 2, 2), torch.randn(1, S, 12), LEVELS),
            r"reference_points must be \(B, Q, L, 2 or 4\).*got \(1, 2, 2\). Is the level axis missing",
        ),
        (
            lambda: MSDeformAttn(12, 2, 3, 4)(
                torch.randn(1, 2, 12), torch.rand(1, 2, 2, 3), torch.randn(1, S, 12), LEVELS
            ),
            "must end in 2 .* or 4",
        ),
        (
            lambda: MSDeformAttn(12, 2, 3, 4)(
                torch.randn(1, 2, 12), torch.rand(1, 2, 2, 2), torch.randn(1, 12, S), LEVELS
            ),
            r"value must be \(B, S, 12\), got \(1, 12, 30\). Is it channels-first",
        ),
        (
            lambda: MSDeformAttn(12, 2, 3, 4)(
                torch.randn(1, 2, 12), torch.rand(1, 2, 2, 2), torch.randn(1, S, 12), LEVELS, None, torch.zeros(1, S)
            ),
            "padding_mask must be bool",
        ),
        (
            lambda: MSDeformAttn3D(12, 2, 3, 4)(
                torch.randn(1, 2, 12), torch.rand(1, 2, 3, 2), torch.randn(1, S, 12), LEVELS
            ),
            "n_points must be a multiple of the Z anchors .* n_points = 4 and Z = 3",
        ),
        (
            lambda: TemporalSelfAttention(12, 1, 3, 4)(
                torch.randn(1, 6, 12), None, torch.rand(2, 6, 1, 2), [(2, 3)]
            ),
            "Is past and present folded into the batch",
        ),
        (
            lambda: SpatialCrossAttention(12, 2, 3, 4)(
                torch.randn(1, 2, 12), torch.rand(3, 1, 2, 2, 2), torch.ones(1, 3, 2, 2).bool(),
                torch.randn(1, 3, S, 12), LEVELS,
            ),
            "Is the camera axis first",
        ),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


LAYERS = {
    "MSDeformAttn": lambda: MSDeformAttn(16, 2, 4, 3),
    "MSDeformAttn3D": lambda: MSDeformAttn3D(16, 2, 4, 4, output_proj=True),
    "SpatialCrossAttention": lambda: SpatialCrossAttention(16, 2, 4, 4),
    "TemporalSelfAttention": lambda: TemporalSelfAttention(16, 1, 4, 3),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("children_first", [False, True])
def test_a_model_made_on_meta_starts_as_one_made_here(kind, children_first):
    """`to_empty`, then every module's reset_parameters, parents first as FSDP does it, or children first."""
    here = LAYERS[kind]()
    with torch.device("meta"):
        model = LAYERS[kind]()
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        tensor.fill_(torch.nan)
    modules = list(model.modules())
    for module in reversed(modules) if children_first else modules:
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for (name, mine), expected in zip(model.state_dict().items(), here.state_dict().values()):
        if "proj.weight" in name:
            bound = (6 / sum(mine.shape)) ** 0.5  # Xavier: uniform, but not the same numbers
            assert 0.8 * bound < mine.abs().max() <= bound, name
        else:
            assert torch.equal(mine, expected), name


def test_spatial_cross_attention_is_exported():
    torch.manual_seed(0)
    layer = SpatialCrossAttention(16, 1, 2, 4).eval()
    query, value = torch.randn(2, 6, 16), torch.randn(2, 3, 12, 16)
    points, seen = torch.rand(2, 3, 6, 2, 2), torch.rand(2, 3, 6, 2) < 0.4
    shapes = torch.tensor([[3, 4]])
    exported = torch.export.export(layer, (query, points, seen, value, shapes)).module()
    torch.testing.assert_close(exported(query, points, seen, value, shapes), layer(query, points, seen, value, shapes))
    other = ~seen  # nothing of the example's mask is in the graph
    torch.testing.assert_close(
        exported(query, points, other, value, shapes), layer(query, points, other, value, shapes)
    )
