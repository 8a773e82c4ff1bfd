"""The acceptance suite, its certificate and the export: nothing passes that is not the learner's, and what passes leaves."""

import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from checks.answers import export
from checks.answers.carry import solution_module
from checks.catalogue import LABS
from checks.ship import acceptance, suite
from checks.ship import models as wild
from checks.ship import workshop as shipping
from checks.tests.conftest import WRITTEN, blank_text, solved_text
from msda_core import device, reference
from msda_core.ops import multi_scale_deformable_attention

pytestmark = pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")


@pytest.fixture
def labs(tmp_path, monkeypatch):
    """A folder of notebooks: solved(lab, …) solves some, the others stay blank."""
    folder = tmp_path / "labs"
    folder.mkdir()
    monkeypatch.setenv("MSDA_LABS", str(folder))

    def write(*solved: str):
        for lab in WRITTEN:
            text = solved_text(lab) if lab in solved else blank_text(lab)
            (folder / f"{LABS[lab].notebook}.py").write_text(text, encoding="utf-8")

    return write


def _solution() -> SimpleNamespace:
    module = solution_module("10", "shipped_in_a_test")
    return SimpleNamespace(
        check_inputs=module.check_inputs, MSDAFunction=module.MSDAFunction, MyMSDeformAttn=module.MyMSDeformAttn
    )


def _row(op, name: str, launched: dict | None = None) -> acceptance.Row:
    return acceptance._run(name, name, partial(suite.TESTS[name], op, "cpu"), {} if launched is None else launched)


def test_stubs_get_no_certificate(labs):
    labs()
    certificate = acceptance.accept()
    assert certificate.state == "incomplete" and not certificate.rows and not certificate.theirs
    assert {f"10.{name}" for name in export.ROOTS} | {"05.msda_forward", "08.msda_backward"} <= set(
        certificate.stood_in
    )
    with pytest.raises(export.NotYours, match="not yours"):
        export.collect()


def test_what_stands_in_is_listed_and_nothing_is_certified(labs):
    labs("05")
    certificate = acceptance.accept()
    assert certificate.state == "incomplete" and not certificate.rows
    assert "08.msda_backward" in certificate.stood_in and "08.msda_backward" not in certificate.theirs
    assert "05.msda_forward" in certificate.theirs
    assert 'data-acceptance="incomplete"' in certificate._repr_html_()


def test_a_door_that_lets_nobody_in_fails():
    def refuse(*args):
        raise ValueError("value spatial_shapes level_start_index sampling_locations attention_weights")

    op = _solution()
    op.check_inputs = refuse
    rows = [_row(op, name) for name in suite.TESTS if name not in ("differentiable_once", "layer_learns", "bad_calls")]
    assert not any(row.status == "pass" for row in rows)
    assert sum(row.status == "fail" for row in rows) >= 12


def test_a_door_without_a_lock_fails():
    op = _solution()
    op.check_inputs = lambda *args: None
    assert _row(op, "bad_calls").status == "fail"


def test_the_reference_in_a_kernels_place_is_found_out():
    class Borrowed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            ctx.save_for_backward(*args)
            return reference.msda(*args)

        @staticmethod
        def backward(ctx, grad_out):
            value, locations, attention = reference.msda_gradients(*ctx.saved_tensors, grad_out)
            return value, None, None, locations, attention

    op, launched = _solution(), {}
    op.MSDAFunction = Borrowed
    row = _row(op, "width_30", launched)
    assert row.status == "fail" and "msda_core.reference" in row.message
    assert acceptance._own_kernels(launched).status == "fail"


def test_kernels_of_the_solution_are_strangers(labs):
    labs()
    launched = {}
    assert _row(_solution(), "width_30", launched).status == "pass"
    row = acceptance._own_kernels(launched)
    assert row.status == "fail" and "lab05.py" in row.message


def test_wrong_numbers_fail():
    right = _solution()

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            ctx.save_for_backward(*args)
            return right.MSDAFunction.forward(SimpleNamespace(save_for_backward=lambda *a: None), *args)

        @staticmethod
        def backward(ctx, grad_out):
            value, _, _, locations, attention = right.MSDAFunction.backward(
                SimpleNamespace(saved_tensors=ctx.saved_tensors), grad_out
            )
            return value, None, None, locations.flip(-1), attention

    op = _solution()
    op.MSDAFunction = Wrong
    row = _row(op, "width_71")
    assert row.status == "fail" and "grad_locations" in row.message


def test_a_solved_course_is_accepted_and_leaves(labs, tmp_path):
    """All labs solved: the certificate names the notebooks' kernels; the package runs where the course is not."""
    labs(*WRITTEN)
    certificate = acceptance.accept()
    assert certificate.state == "issued", certificate.text()
    assert set(certificate.kernels) == {"msda_fwd_kernel", "msda_bwd_kernel"}
    assert set(certificate.kernels.values()) == {"05_forward.py", "08_atomics.py"}
    assert {row.name for row in certificate.rows if row.status == "not_run"} >= {"compile", "deterministic"}
    assert all(row.message for row in certificate.rows if row.status == "not_run")
    assert next(row for row in certificate.rows if row.name == "gradcheck").status == "pass"
    folder = acceptance.export_package(tmp_path / "package", certificate)
    text = "".join(path.read_text(encoding="utf-8") for path in (folder / "my_msda").glob("*.py"))
    assert "msda_core" not in text and "checks" not in text and "solutions" not in text
    assert '"numpy' in (folder / "pyproject.toml").read_text(encoding="utf-8"), "Triton's interpreter imports it"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert all(row.title in readme for row in certificate.rows if row.status == "not_run")
    code = (
        "import sys, pytest; sys.path.insert(0, sys.argv[1]); "
        "plain = ['-q', '-p', 'no:cacheprovider', '-p', 'no:msda_core.machine.tool.fixtures']; "
        "status = pytest.main([*plain, sys.argv[1], '-k', 'width_71 or nowhere or bad_calls']); "
        "assert not {'checks', 'msda_core', 'solutions'} & set(sys.modules); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=tmp_path, capture_output=True, text=True, timeout=240,
        env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MSDA_LABS", "PYTEST_ADDOPTS")},
    )  # fmt: skip
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("model", wild.MODELS)
def test_models_say_the_same(model):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("not run: needs transformers, which is optional")
    comparison = wild.compare_model(model, multi_scale_deformable_attention)
    assert comparison.equal and comparison.calls and comparison.parameters > 50, comparison.sentence


def test_a_wrong_operator_in_a_model_is_seen():
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("not run: needs transformers, which is optional")
    swapped = lambda v, s, i, p, a, **options: multi_scale_deformable_attention(v, s, i, p.flip(-1), a)  # noqa: E731
    assert not wild.compare_model("RT-DETR", swapped).equal
    assert not wild.bev_layer(swapped)[0].equal


def test_without_transformers_nothing_is_passed(monkeypatch):
    monkeypatch.setattr(wild.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(acceptance.NotRun, match="transformers"):
        wild.compare_model("RT-DETR", multi_scale_deformable_attention)


def test_figures_to_beat_are_those_recorded(monkeypatch, tmp_path):
    rows = [("encoder", "plain", 900.0), ("encoder", "merged", 300.0), ("decoder", "msda_core", 20.0)]
    rows += [("encoder", "slow peer", 1e4), ("encoder", "peer", 1234.0), ("decoder", "peer", 30.0)]
    data = [
        {"preset": p, "dtype": dtype, "operator": o, "bwd_kernels": t} for p, o, t in rows for dtype in ("fp16", "fp32")
    ]
    for name in ("bench_h200.json", "bench_h200_encoder.json"):
        (tmp_path / name).write_text(json.dumps({"rows": data}))
    recorded = shipping.open_ground()
    monkeypatch.setattr(shipping, "RECORDED", tmp_path)
    changed = shipping.open_ground()
    assert recorded != changed and "300 µs in float16" in changed and "900 and 900" in changed and "1234" in changed
