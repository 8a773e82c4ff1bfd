"""The benchmark: its inputs, its table, its manners. The clocks themselves need a GPU."""

import json

import pytest
import torch

from msda_core import inputs
from msda_core.bench import operator as bench
from msda_core.ops import multi_scale_deformable_attention

LEVELS = [(4, 6), (2, 3)]


def test_pyramid_of_a_detector():
    assert bench.pyramid(800, 1333) == [(100, 167), (50, 84), (25, 42), (13, 21)]


@pytest.mark.parametrize("preset, B, Q", [("decoder", 4, 300), ("encoder", 2, 30)])
def test_inputs(preset, B, Q):
    value, shapes, starts, loc, attn, grad = bench.make_inputs(preset, torch.float16, LEVELS, "cpu", torch.float32)
    assert value.shape == (B, 30, 8, 32) and value.dtype == torch.float16
    assert loc.shape == (B, Q, 8, 2, 4, 2) and loc.dtype == torch.float32
    assert starts.tolist() == [0, 24] and grad.shape == (B, Q, 256)
    torch.testing.assert_close(attn.sum((3, 4)), torch.ones(B, Q, 8))
    if preset == "encoder":  # around each query's own pixel, two pixels wide, at every level
        centre = torch.tensor([0.5 / 6, 0.5 / 4])
        offset = (loc[:, 0] - centre) * shapes.flip(-1)[:, None]
        assert offset.mean().abs() < 0.5 and 1.5 < offset.std() < 2.5


def test_offsets_of_every_spread():
    levels, size = [(40, 60), (20, 30)], torch.tensor([[60, 40], [30, 20]])
    shape = (1, 3000, 8, 2, 4, 2)

    def offsets(spread):
        loc = inputs.encoder_locations(shape, levels, spread, "cpu", torch.Generator().manual_seed(0))
        assert loc.shape == shape
        query = 45 * 1 + 60 * 7  # pixel (45, 7) of the first level
        return loc, (loc[0, query] - torch.tensor([45.5 / 60, 7.5 / 40])) * size[:, None]

    assert 0.35 < offsets(0.5)[1].std() < 0.65 and 22 < offsets(32)[1].std() < 42
    start = offsets("initial")[1]  # head 0 looks right, head 2 down, head 1 both; point k goes k + 1 pixels
    torch.testing.assert_close(start[0, 1], torch.tensor([[1.0, 0], [2, 0], [3, 0], [4, 0]]), atol=1e-4, rtol=0)
    torch.testing.assert_close(start[1, 0, 2], torch.tensor([3.0, 3.0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(start[2, 1, 3], torch.tensor([0.0, 4.0]), atol=1e-4, rtol=0)
    loc = offsets("uniform")[0]
    assert 0 <= loc.min() < 0.01 and 0.99 < loc.max() <= 1 and abs(loc.mean() - 0.5) < 0.01


def test_plain_composition_agrees():
    value, shapes, starts, loc, attn, _ = bench.make_inputs("decoder", torch.float32, LEVELS, "cpu", B=1, Q=3)
    plain = bench.plain_grid_sample(value, LEVELS, loc, attn)
    torch.testing.assert_close(plain, multi_scale_deformable_attention(value, shapes, starts, loc, attn))


def row(operator, fwd, bwd):
    times = {f"{way}_{c}": t for way, t in (("fwd", fwd), ("bwd", bwd)) for c in bench.COLUMNS}
    errors = {f"error_{n}": 1e-4 for n in ("out", "value", "loc", "attn")}
    return dict(preset="decoder", dtype="fp16", operator=operator, peak=3.5, fwd_host_tracked=20.0, **times, **errors)


def test_table_compares_with_the_best_other():
    text = bench.table([row("msda_core", 10.0, 20.0), row("reference", 300.0, 900.0), row("peer", 12.0, 50.0)])
    assert "fwd 1.20x of peer, bwd 2.50x of peer" in text
    assert "msda_core" in text and "peak MiB" in text


def test_table_shows_both_ways_of_the_encoder():
    rows = [row("msda_core", 10.0, 20.0), row("plain", 10.0, 20.0), row("merged", 8.0, 10.0), row("peer", 12.0, 30.0)]
    rows = [r | {"preset": "encoder", "spread": 2.0} for r in rows] + [r | {"spread": None} for r in rows[:1]]
    text = bench.table(rows)
    assert "encoder, fp16, spread 2.0 pixels" in text and "decoder, fp16   (µs)" in text
    assert "best other over merged: fwd 1.50x of peer, bwd 3.00x of peer" in text
    assert "plain over merged: fwd 1.25x of plain, bwd 2.00x of plain" in text
    assert "best other over plain" not in text  # msda_core's line says the same


def test_both_ways_are_the_operator():
    from msda_core.ops import eager

    seen = []
    found = bench.operators([], LEVELS, False)
    assert list(found)[:3] == list(bench.OURS)
    call = bench.make_inputs("encoder", torch.float32, LEVELS, "cpu", B=1)[:5]
    original = bench.multi_scale_deformable_attention
    bench.multi_scale_deformable_attention = lambda *args: (seen.append(eager.merging_wish()), original(*args))[1]
    try:
        results = [found[name](*call) for name in ("plain", "merged")]
    finally:
        bench.multi_scale_deformable_attention = original
    assert seen == [False, True] and torch.equal(*results) and eager.merging_wish() is None


@pytest.mark.parametrize("spread", ["two", ""])
def test_a_bad_spread_is_refused(spread, capsys):
    with pytest.raises(SystemExit):
        bench.main(["--spread", spread])
    assert "--spread must be pixels, 'initial' or 'uniform'" in capsys.readouterr().err


def test_picture_on_request(tmp_path):
    pytest.importorskip("matplotlib")
    bench.draw([row("msda_core", 10.0, 20.0), row("reference", 300.0, 900.0)], str(tmp_path / "bench.png"))
    assert (tmp_path / "bench.png").read_bytes()[:4] == b"\x89PNG"


def test_cpu_figures_as_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench, "cpu_ratio", lambda backward: 1.0 + backward)
    assert bench.main(["--cpu", "--json", str(tmp_path / "cpu.json")]) == 0
    report = json.loads((tmp_path / "cpu.json").read_text())
    assert report["cpu_ratio"] == {"forward": 1.0, "forward and backward": 2.0}
    assert report["environment"]["torch"] == torch.__version__
    assert "2.00x the plain composition" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main([]) == 1
    assert "needs a CUDA GPU, found none. Nothing was timed" in capsys.readouterr().out


@pytest.mark.parametrize("resolution", ["800", "axb", "800x1333x3"])
def test_a_bad_resolution_is_refused(resolution, capsys):
    with pytest.raises(SystemExit):
        bench.main(["--resolution", resolution])
    assert "--resolution must be HxW in pixels" in capsys.readouterr().err


def test_any_function_can_be_a_peer():
    found = bench.operators(["mine=msda_core.ops:multi_scale_deformable_attention"], LEVELS, False)
    assert found["mine"] is multi_scale_deformable_attention
    with pytest.raises(ValueError, match="Is the function's name missing"):
        bench.operators(["mine=msda_core.ops"], LEVELS, False)


@pytest.mark.gpu
def test_on_a_gpu(tmp_path, capsys):
    path = tmp_path / "bench.json"
    arguments = ["--preset", "decoder", "--resolution", "128x160", "--dtypes", "fp16", "--quick", "--json", str(path)]
    assert bench.main([*arguments, "--only", "msda_core", "reference"]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [r["operator"] for r in rows] == ["msda_core", "reference"]
    for r in rows:
        assert all(r[f"{way}_{c}"] > 0 for way in ("fwd", "bwd") for c in bench.COLUMNS)
        assert r["error_out"] < 1e-2 and r["error_value"] < 1e-2
    assert rows[0]["fwd_kernels"] < rows[0]["fwd_eager"]


@pytest.mark.gpu
def test_both_ways_on_a_gpu(tmp_path):
    path = tmp_path / "bench.json"
    arguments = ["--preset", "encoder", "--resolution", "128x160", "--dtypes", "fp16", "--quick", "--json", str(path)]
    assert bench.main([*arguments, "--only", "plain", "merged", "--spread", "1", "initial"]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(r["operator"], r["spread"]) for r in rows] == [
        ("plain", 1.0), ("merged", 1.0), ("plain", "initial"), ("merged", "initial"),
    ]  # fmt: skip
    assert all(r["error_out"] < 1e-2 and r["error_value"] < 1e-2 for r in rows)
