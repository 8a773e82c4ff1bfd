"""Every claim about hardware, software and public reports stands in its lab, and in its source where that can be opened."""

import importlib.util
from pathlib import Path
from statistics import median

import pytest

from checks.answers.notebook import notebook_path
from checks.show.claims import CLAIMS
from msda_core.figures import speed
from msda_core.machine.model import roofline

ROOT = Path(__file__).parents[2]


def flat(text: str) -> str:
    return " ".join(text.split())


def lab_text(lab: str) -> str:
    """A notebook with its strings' seams closed: a sentence may go on in the next literal."""
    text = flat(notebook_path(lab).read_text(encoding="utf-8"))
    return text.replace('" f"', "").replace('" "', "")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: f"{c.lab}: {c.phrase[:40]}")
def test_a_claim_stands_in_its_lab_and_in_its_source(claim):
    assert flat(claim.phrase.replace('" "', "")) in lab_text(claim.lab)
    kind, where = claim.source.split(": ", 1)
    assert kind in ("repo", "package", "read") and where and claim.says
    if kind == "repo":
        assert flat(claim.says) in flat((ROOT / where).read_text(encoding="utf-8"))
    elif kind == "package":
        package, _, inside = where.partition("/")
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            pytest.skip(f"not run: {package} is not installed")
        assert claim.says in (Path(spec.submodule_search_locations[0]) / inside).read_text(encoding="utf-8")


def test_every_lab_has_claims_with_sources():
    assert {claim.lab for claim in CLAIMS} == {f"{n:02d}" for n in range(1, 11)}


def test_lanes_of_an_h200_are_what_its_data_sheet_implies():
    gpu = roofline.GPUS["H200"]
    lanes = gpu.flops["fp32"] / 2 / (gpu.clock * 1e9) / gpu.sms
    assert lanes == pytest.approx(128, rel=0.01)
    assert gpu.sms * 128 == pytest.approx(17_000, rel=0.01) and gpu.sms * 2048 == pytest.approx(270_000, rel=0.01)


def test_the_model_is_judged_on_launches_that_chose_nothing():
    """Lab 06: fitted launches 2 % at most; the other seven 20 % in the median and 68 % at worst; cold 10 to 74 %."""
    gpu, off = roofline.GPUS["H200"], {}
    for name, (loads, stores, reductions, line, dram, warm), time in speed.recorded():
        found = roofline.estimate_counts(gpu, dram, loads + stores, reductions, line, warm)
        off[name] = abs(1e6 * found.seconds / time - 1)
    fitted = {"copy, warm", "msda backward f32, warm", "histogram, warm"}
    assert max(off[name] for name in fitted) < 0.025
    others = [error for name, error in off.items() if name.endswith("warm") and name not in fitted]
    assert len(others) == 7 and median(others) == pytest.approx(0.20, abs=0.01)
    assert max(others) == pytest.approx(0.68, abs=0.01)
    cold = [error for name, error in off.items() if name.endswith("cold")]
    assert min(cold) == pytest.approx(0.10, abs=0.01) and max(cold) == pytest.approx(0.74, abs=0.01)


def test_in_the_encoder_time_is_instructions():
    rows = {row["kernel"]: row for row in speed.profiled("encoder", "float16")}
    rates = [row["instructions"] / row["us"] for row in rows.values()]
    assert max(rates) / min(rates) < 1.02
    query, shipped = rows["query"], rows["shipped"]
    assert query["load_sectors"] == shipped["load_sectors"] and query["l2_sectors"] < shipped["l2_sectors"]
    assert query["us"] / shipped["us"] == pytest.approx(1.55, abs=0.01)
