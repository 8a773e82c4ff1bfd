"""The crossing is drawn from what the bench writes, and says so where nothing was timed; the count agrees with the kernel."""

import json

import pytest
import torch

from msda_core import device, inputs
from msda_core.bench import operator as bench

pytestmark = pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")

if device.NO_TRITON is None:
    from msda_core.figures import merging

LEVELS = ((6, 64), (3, 32))


def report(path, plain, merged, spreads):
    """A file of the bench's form, whose figures nobody measured."""
    rows = []
    for spread, *times in zip(spreads, plain, merged):
        for name, time in zip(("plain", "merged"), times):
            clocks = {f"{way}_{c}": time for way in ("fwd", "bwd") for c in bench.COLUMNS}
            rows.append({"preset": "encoder", "dtype": "fp16", "operator": name, "spread": spread, **clocks})
    path.write_text(json.dumps({"environment": {"gpu": "no GPU, made up for a test"}, "rows": rows}))
    return path


def test_nothing_timed_is_said_in_words(tmp_path):
    picture = merging.crossing(tmp_path / "nothing.json")
    assert "Not run: merging has not been timed on a device" in picture.description
    assert merging.COMMAND in picture.description and len(picture.png()) > 1000
    one = report(tmp_path / "one.json", [1.0], [1.0], [2.0])
    assert "fewer than two spreads" in merging.crossing(one).description


def test_the_command_is_one_that_the_bench_takes(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main(merging.COMMAND.split()[3:]) == 1
    assert "found none" in capsys.readouterr().out


def test_the_crossing_is_where_the_times_meet(tmp_path):
    path = report(
        tmp_path / "b.json",
        [400, 400, 400, 400, 410, 400],
        [200, 200, 500, 600, 205, 500],
        [1, 2, 8, 32, "initial", "uniform"],
    )
    picture = merging.crossing(path)
    assert "made up for a test" in picture.description
    # 2.00 at 2 pixels and 0.80 at 8: 1 after five sixths of two octaves
    assert "they cross at 6.3 pixels" in picture.description and merging.crossings_of(
        [2, 8], [2, 0.8]
    ) == pytest.approx([2 * 4 ** (5 / 6)])
    assert merging.crossings_of([1, 2, 4], [2, 0.5, 2]) == pytest.approx([2 ** (2 / 3), 2 ** (4 / 3)])
    assert "initial: 2.00" in picture.description and "uniform: 0.80" in picture.description
    assert len(picture.png()) > 1000
    never = report(tmp_path / "n.json", [400, 400], [200, 300], [1, 2])
    assert "they do not cross" in merging.crossing(never).description


def test_what_is_counted_is_what_the_kernel_does(monkeypatch):
    """The rule of the window, written in PyTorch, and the statuses that the kernel writes; both kinds of tile."""
    from msda_core.inputs import make_call
    from msda_core.kernels import merged

    seen = []
    launch = merged.launch
    monkeypatch.setattr(merged, "launch", lambda k, p, t: (seen.append((k.fn.__name__, t)), launch(k, p, t))[1])
    call = make_call(B=1, Q=6 * 64 + 3 * 32, M=2, D=32, K=4, levels=LEVELS)
    for m, spread in enumerate((2.0, 12.0)):  # a head that looks around itself, and one that looks far away
        shape = (1, call.loc.shape[1], 1, 2, 4, 2)
        draw = torch.Generator().manual_seed(m)
        call.loc[:, :, m : m + 1] = inputs.encoder_locations(shape, list(LEVELS), spread, "cpu", draw).to(
            call.loc.device
        )
    merged.merged_backward(call.value, call.shapes, call.starts, LEVELS, call.loc, call.attn, call.grad_out)
    ((_, tensors),) = [one for one in seen if one[0] == "merge_window_kernel"]
    statuses, flags = tensors[7].view(2, -1).cpu(), tensors[6][0, 1, :, : 6 * 64].cpu()
    for m, fate in enumerate(("merged", "plain")):
        shares, status = merging.shares_of(call.loc[0, :, m].cpu(), LEVELS)
        assert tuple(statuses[m].tolist()) == status
        assert shares[fate] > 0.9 and sum(shares.values()) == pytest.approx(1)
        found = sum(int(((flags[m] >> k) & 1).sum()) for k in range(4))
        pixel = call.loc[0, : 6 * 64, m, 1].cpu() * torch.tensor([32, 3]) - 0.5
        alive = int(((pixel.floor() >= -1) & (pixel.floor() < torch.tensor([32, 3]))).all(-1).sum())
        assert found == round(shares["remainder"] * alive)


def test_wider_offsets_are_merged_less():
    found = [merging.shares(((50, 84), (25, 42)), spread)[0]["merged"] for spread in (1.0, 4.0, 16.0)]
    assert found[0] > 0.99 > found[1] > 0.5 > found[2] and found[2] < 0.05
    picture = merging.shares_picture(((50, 84), (25, 42)), (1.0, 16.0, "uniform"))
    assert "Counted, not timed" in picture.description and "1 pixel: 100% merged" in picture.description
    assert len(picture.png()) > 1000
