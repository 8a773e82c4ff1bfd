"""The benchmark: its inputs, its table, its manners. The clocks themselves need a GPU."""

import json

import pytest
import torch

from msda_core import bench
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
