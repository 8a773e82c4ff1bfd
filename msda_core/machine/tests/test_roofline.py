"""Bounds and estimates: by formula, and against the times an H200 took."""

import importlib
import itertools
import json
import statistics

import pytest
import torch

from msda_core import machine
from msda_core.bench import calibrate, probes
from msda_core.device import load_triton
from msda_core.machine.model import instructions, timing

triton = load_triton()
roofline = importlib.import_module("msda_core.machine.model.roofline")  # the package has a function of that name


def test_a_roofline_by_formula():
    gpu = machine.GPUS["A100"]
    memory = machine.roofline(2.039e9, 1e9, "A100")
    assert memory.bound == "memory" and memory.seconds == pytest.approx(1e-3) and memory.intensity < memory.ridge
    assert memory.flops == pytest.approx(1e12)
    arithmetic = machine.roofline(1.0, 19.5e9, gpu)
    assert arithmetic.bound == "arithmetic" and arithmetic.flops == pytest.approx(19.5e12)
    assert machine.roofline(1e6, 1e6, gpu, "fp16").ridge > machine.roofline(1e6, 1e6, gpu).ridge


def test_gpus_are_found_by_name_and_unknown_ones_refused():
    assert roofline.find_gpu("4090").name == "RTX 4090" and roofline.find_gpu("NVIDIA H200").name == "H200"
    for name in ("H20000", "RTX", ""):
        with pytest.raises(machine.LaunchError, match="No GPU is called.*Known: H200"):
            roofline.find_gpu(name)
    with pytest.raises(machine.LaunchError, match="dtype"):
        machine.roofline(1, 1, "H200", "int3")


def test_an_estimate_has_parts_and_says_it_is_a_model():
    x, y = torch.zeros(1 << 16), torch.zeros(1 << 16)
    report = machine.profile(probes.probe_copy, (64,), x, y, 1 << 16, BLOCK=1024)
    cold, warm = (machine.estimate(report, "H200", warm=w) for w in (False, True))
    assert cold.parts["DRAM"] > 0 == warm.parts["DRAM"] and cold.bound == warm.bound == "launch"
    assert max(cold.parts.values()) < cold.seconds - cold.floor <= sum(cold.parts.values())
    body = [i for i in report.lowering.sass.splitlines() if ";" in i]
    assert 0 < cold.instructions <= len(body) * 4 * 64
    for gpu in machine.GPUS:
        estimate = machine.estimate(report, gpu)
        assert "model, not a measurement" in estimate.label and "Not modelled:" in str(estimate)
        assert ("Never measured" in estimate.label) == (gpu != "H200")


def timed():
    for name in ("times_h200.json", "times_h200_unseen.json"):
        data = json.loads((calibrate.DATA / name).read_text())
        for record in data["timed"]:
            work = record["work"]
            family = record["case"].partition(".")[0]
            yield record, timing.Work(**{**work, "mix": timing.Mix(**work["mix"])}), family, family in data["held_out"]


def test_instructions_are_those_the_hardware_executed():
    """116 launches: the machine code times its loops against Nsight Compute."""
    off = [w.mix.all * w.warps * w.programs / r["instructions"] - 1 for r, w, _, _ in timed()]
    assert len(off) == 116 and statistics.median(map(abs, off)) < 0.01 and sum(abs(e) < 0.2 for e in off) >= 114


def test_occupancy_is_the_hardwares():
    class Fake:
        pass

    for record, work, _, _ in timed():
        Fake.registers, Fake.shared, Fake.num_warps = record["registers"], record["shared"], work.warps
        assert machine.occupancy(Fake, "H200").blocks == work.resident == min(record["limits"].values()), record["case"]


@pytest.mark.parametrize("warm, key, fit", [(False, "cold_us", timing.COLD), (True, "warm_us", timing.WARM)])
def test_the_estimates_error_is_that_of_launches_that_fitted_nothing(warm, key, fit):
    gpu, found = machine.GPUS["H200"], []
    for record, work, family, out in timed():
        if out:
            found.append((family, 1e6 * timing.of_work(work, gpu, warm).seconds, record[key]))
    errors = [abs(guess / time - 1) for _, guess, time in found]
    assert len(found) == fit.launches >= 60
    assert statistics.median(errors) == pytest.approx(fit.error, abs=0.005) and fit.error < 0.2
    assert max(errors) == pytest.approx(fit.worst, abs=0.005)
    pairs = [
        (a[1] < b[1]) == (a[2] < b[2])
        for a, b in itertools.combinations(found, 2)
        if a[0] == b[0] and max(a[2], b[2]) >= 1.1 * min(a[2], b[2])
    ]
    assert (sum(pairs), len(pairs)) == (fit.right, fit.pairs) and sum(pairs) >= 0.9 * len(pairs)


def test_occupancy_by_the_tightest_limit():
    class Fake:
        target, num_warps, registers, shared = 90, 4, 32, 0

    assert machine.occupancy(Fake) == machine.Occupancy(16, 64, "registers", 1.0)
    Fake.registers = 255
    assert machine.occupancy(Fake).blocks == 2 and machine.occupancy(Fake).limit == "registers"
    Fake.registers, Fake.shared = 32, 100 * 1024
    assert machine.occupancy(Fake).blocks == 2 and machine.occupancy(Fake).limit == "shared memory"
    Fake.registers, Fake.shared, Fake.num_warps = 82, 0, 1  # five warps of 88 registers a lane in each partition
    assert machine.occupancy(Fake).blocks == 20 and machine.occupancy(Fake).limit == "registers"
    Fake.target = 42
    with pytest.raises(machine.LaunchError, match="capability 42"):
        machine.occupancy(Fake)


def test_the_models_error_is_what_it_says():
    """Every timed launch: the estimate with a warm L2 against the H200's clock."""
    timed = [r for path in calibrate.DATA.glob("counters_*.json") for r in json.loads(path.read_text())["timed"]]
    errors = {}
    for record in timed:
        model = record["model"]
        estimate = roofline.estimate_counts(
            machine.GPUS["H200"],
            compulsory=model["dram_bytes"] + model["written_bytes"],
            sectors=model["load_sectors"] + model["store_sectors"],
            reductions=model["red_sectors"] + model["atom_sectors"],
            line=model["line"],
            warm=True,
        )
        errors[record["case"]] = abs(estimate.seconds * 1e6 - record["warm_us"]) / record["warm_us"]
    assert len(errors) == roofline.MEASURED
    assert max(errors.values()) == pytest.approx(roofline.ERROR, abs=0.01), errors
    assert statistics.median(errors.values()) == pytest.approx(roofline.TYPICAL, abs=0.01), errors


def rounds(code: str, trips: float = 1.0) -> float:
    lines = [f"/*{16 * i:04x}*/ {text} ;" for i, text in enumerate(code.split(";")) if text.strip()]
    if trips > 1:
        lines = [".L_x_1:", *lines, f"/*{16 * len(lines):04x}*/ @P0 BRA `(.L_x_1) ;"]
    return instructions.count_instructions("\n".join([*lines, "/*f000*/ EXIT ;"]), {}, [trips]).rounds


@pytest.mark.parametrize(
    "code, trips, waited",
    [
        ("LDG.E R2, desc[UR4][R4.64]; LDG.E R3, desc[UR4][R6.64]; FADD R8, R2, R3", 1, 1),  # side by side
        (
            "LDG.E R2, desc[UR4][R4.64]; IADD3 R6, R2, R4, RZ; LDG.E R3, desc[UR4][R6.64]; FADD R8, R3, R3",
            1,
            2,
        ),  # in turn
        ("LDG.E.128 R4, desc[UR4][R2.64]; FADD R8, R7, R7", 1, 1),  # the last of four registers
        ("LDG.E R2, desc[UR4][R4.64]; FADD R8, R8, R2", 10, 10),  # the sum needs each turn's
        ("LDGSTS.E.128 [R6], desc[UR4][R4.64]; LDGDEPBAR; DEPBAR.LE SB0, 0x0", 10, 10),  # copies that are waited for
        ("LDGSTS.E.128 [R6], desc[UR4][R4.64]; LDGDEPBAR; DEPBAR.LE SB0, 0x1", 10, 5),  # one ahead: two under way
        ("LDG.E R2, desc[UR4][R4.64]; STG.E desc[UR4][R6.64], R3", 1, 0),  # nobody looks at it
    ],
)
def test_a_warp_waits_where_it_reads_what_it_loads(code, trips, waited):
    assert rounds(code, trips) == pytest.approx(waited, abs=0.6)
