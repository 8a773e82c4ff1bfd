"""The acceptance suite: is the operator that a learner's notebooks add up to fit to ship, and is it theirs?

Everything runs on what the notebooks hold on disk, under the machine's guard on the CPU, and again on the GPU where there is
one. What is not the learner's is not tested: it is listed, and no certificate names it. `python -m checks.ship.acceptance`.
"""

import argparse
import contextlib
import importlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from checks.answers import export
from checks.answers.carry import carried
from checks.answers.notebook import notebook_path
from checks.core.call import call
from checks.core.exercise import NotRun
from checks.core.panel import STATES, code_html, frame, spoken
from checks.ship import suite
from msda_core import device, nn, reference

__all__ = ["Certificate", "Row", "accept", "operator", "pieces"]

LIMIT = 240.0  # seconds one test may take on a busy machine


@dataclass(frozen=True)
class Row:
    """One test: its name, what must hold, one of pass, fail and not_run, and what was found."""

    name: str
    title: str
    status: str
    message: str = ""
    seconds: float = 0.0


@dataclass
class Certificate:
    """The result of the suite.

    Attributes:
        theirs: exercises that are the learner's and pass, "05.msda_forward".
        stood_in: exercise → why it is not theirs.
        kernels: kernels that were launched → the file they are in.
        rows: the tests.
        device: where it ran.
    """

    theirs: list[str] = field(default_factory=list)
    stood_in: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    device: str = field(default_factory=device.describe)

    def count(self, status: str) -> int:
        """How many tests ended so."""
        return sum(row.status == status for row in self.rows)

    @property
    def state(self) -> str:
        """issued: all theirs, something passed, nothing failed; refused: something failed; incomplete: not all theirs."""
        if self.stood_in:
            return "incomplete"
        return "issued" if self.count("pass") and not self.count("fail") else "refused"

    @property
    def summary(self) -> str:
        """The result in a sentence or two."""
        tests = f"{self.count('pass')} passed, {self.count('fail')} failed, {self.count('not_run')} not run"
        if self.state == "issued":
            return f"On {self.device}: {tests}. Every kernel that ran is the learner's own."
        if self.state == "refused":
            return f"On {self.device}: {tests}. No certificate."
        return f"No certificate: {len(self.stood_in)} of {len(self.theirs) + len(self.stood_in)} pieces are not yours yet. Nothing was tested."

    def json(self) -> dict[str, Any]:
        """The certificate as plain data, with a version."""
        return {
            "version": 1,
            "state": self.state,
            "summary": self.summary,
            "device": self.device,
            "theirs": self.theirs,
            "stood_in": self.stood_in,
            "kernels": self.kernels,
            "tests": [vars(row) for row in self.rows],
        }

    def text(self) -> str:
        """The certificate as lines for a terminal."""
        lines = [self.summary]
        lines += [f"  yours      {name}" for name in self.theirs]
        lines += [f"  NOT YOURS  {name}: {why}" for name, why in self.stood_in.items()]
        for row in self.rows:
            lines.append(f"  {STATES[row.status][1]:<8}   {row.name} ({row.seconds:.1f} s): {row.message or row.title}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        state = {"issued": "pass", "refused": "fail", "incomplete": "todo"}[self.state]
        glyph = STATES[state][0]
        heading = {"issued": "Accepted", "refused": "Not accepted", "incomplete": "Not tested"}[self.state]
        parts = [f"<p>{code_html(self.summary)}</p>"]
        if self.theirs:
            parts.append("<p>Yours: " + ", ".join(f"<code>{code_html(name)}</code>" for name in self.theirs) + ".</p>")
        if self.kernels:
            ran = ", ".join(
                f"<code>{code_html(k)}</code> of {code_html(Path(f).name)}" for k, f in self.kernels.items()
            )
            parts.append(f"<p>Kernels that ran: {ran}.</p>")
        for name, why in self.stood_in.items():
            parts.append(f"<p>↺ <code>{code_html(name)}</code> is not yours yet: {code_html(why)}</p>")
        for status, label in (("fail", "Failed"), ("not_run", "Not run, and why"), ("pass", "Passed")):
            rows = [row for row in self.rows if row.status == status]
            if not rows:
                continue
            items = "".join(
                f'<li data-test="{row.name}" data-state="{row.status}"><span aria-hidden="true">{STATES[status][0]}</span> '
                f"{code_html(row.title)}{': ' + code_html(row.message) if row.message else ''}</li>"
                for row in rows
            )
            opened = "" if status == "pass" else " open"
            parts.append(
                f'<details{opened}><summary style="cursor:pointer">{label}: {len(rows)}</summary>'
                f'<ul style="list-style:none;margin:.3em 0;padding:0 0 0 .5em">{items}</ul></details>'
            )
        return frame(
            state,
            f'data-acceptance="{self.state}" role="status" aria-label="{spoken(heading + ". " + self.summary)}"',
            f'<div style="font-weight:600;color:var(--verdict)"><span aria-hidden="true">{glyph}</span> {heading}</div>'
            + "".join(parts),
        )


# ------------------------------------------------------------------------------------------------------- whose it is


def pieces() -> tuple[list[str], dict[str, str]]:
    """Which of the operator's pieces are the learner's, and which are not, with the reason.

    Pieces are the three answers of lab 10 and the exercises of earlier labs that these call, and so on down.
    """
    theirs, missing, seen = [], {}, set()
    waiting = [("10", name) for name in export.ROOTS]
    while waiting:
        lab, name = waiting.pop(0)
        if (lab, name) in seen:
            continue
        seen.add((lab, name))
        judged = carried(lab).judge(name) if export.is_exercise(lab, name) else None
        if judged is not None and not judged.theirs:
            missing[f"{lab}.{name}"] = judged.reason
            if name == "MSDAFunction":  # what it will call once it is written
                waiting += [("05", "msda_forward"), ("08", "msda_backward")]
            continue
        try:
            waiting += [
                one for one in export.needs_of(lab, name, export.source_of(lab, name)) if isinstance(one, tuple)
            ]
        except export.NotYours as why:
            missing[f"{lab}.{name}"] = str(why)
            continue
        if judged is not None:
            theirs.append(f"{lab}.{name}")
    return sorted(theirs), missing


def operator() -> SimpleNamespace:
    """The learner's operator as it is on disk: the three answers of lab 10, and one call that goes through the door."""
    lab10 = carried("10")
    check_inputs, function, layer = (lab10.judge(name).function for name in export.ROOTS)

    def attend(value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
        args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
        check_inputs(*args)
        return function.apply(*args)

    return SimpleNamespace(
        check_inputs=check_inputs, MSDAFunction=function, MyMSDeformAttn=layer, attend=attend, emulates_bfloat16=True
    )


# ----------------------------------------------------------------------------------------------------------- the tests


def _equals_ours(op, expected) -> str:
    """The same numbers as `msda_core` on the same inputs, there and back."""
    inputs, grad_out, wanted = expected
    got = suite.both_ways(op, inputs, "cpu", grad_out)
    worst = 0.0
    for mine, right in zip(got, wanted):
        worst = max(worst, ((mine - right).abs().max() / right.abs().max()).item())
    assert worst < 1e-5, f"the largest relative difference is {worst:.1e}"
    return f"the largest relative difference is {worst:.1e}"


def _ours() -> tuple:
    """A call, and what `msda_core` makes of it; before the doors to it are closed."""
    inputs = suite.make([(5, 3), (2, 4)], B=2, Q=2, M=2, D=5, K=3, seed=21)
    grad_out = torch.randn(2, 2, 10, generator=torch.Generator().manual_seed(22))
    out = reference.msda(*inputs)
    return inputs, grad_out, [out, *reference.msda_gradients(*inputs, grad_out)]


def _layer_equals_ours(op, expected) -> str:
    """The layer loads a checkpoint of Deformable DETR's layer, and gives what that one gives."""
    state, args, wanted = expected
    layer = op.MyMSDeformAttn(8, 2, 2, 2)
    layer.load_state_dict(state)
    error = (layer(*args) - wanted).abs().max().item()
    assert error < 1e-5 * max(1.0, wanted.abs().max().item()), f"it is off by {error:.1e}"
    return f"off by {error:.1e}"


def _our_layer() -> tuple:
    torch.manual_seed(23)
    theirs = nn.MSDeformAttn(8, 2, 2, 2)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    _, shapes, starts, _, _ = suite.make()
    args = (
        torch.randn(1, 3, 8), torch.rand(1, 3, 2, 4), torch.randn(1, 23, 8), shapes, starts, torch.rand(1, 23) < 0.3
    )  # fmt: skip
    return theirs.state_dict(), args, theirs(*args).detach()


def _gradcheck(doubled) -> str:
    """gradcheck in float64: your kernels, with float64 in the place of every tl.float32."""
    value, shapes, starts, locations, attention = suite.make([(2, 3), (3, 2)], D=2, K=1, seed=24)
    locations = torch.tensor([[[[[[0.41, 0.37]], [[0.62, 0.55]]]]]])  # away from the kinks, where no slope is right
    leaves = [t.double().requires_grad_() for t in (value, locations, attention)]
    attend = lambda v, p, a: doubled.MSDAFunction.apply(v, shapes, starts, p, a)  # noqa: E731
    error = (attend(*leaves) - suite.truth(leaves[0], shapes, starts, *leaves[1:])).abs().max().item()
    if error > 1e-12:
        raise NotRun(
            f"your kernels do not compute in float64 when every tl.float32 is made a tl.float64 (off by {error:.0e}), and in "
            "float32 a numeric gradient is too coarse. Their gradients were compared with float64 ones instead."
        )
    torch.autograd.gradcheck(attend, leaves, eps=1e-6, atol=1e-7, rtol=1e-6)
    return "every element of all three gradients, to 1e-6"


@contextlib.contextmanager
def _in_double(sources: export.Sources) -> Iterator[SimpleNamespace]:
    """The operator once more, from the exported text, with float64 in the place of every tl.float32."""
    name = f"msda_in_double_{time.monotonic_ns()}"
    texts = {module: text.replace("tl.float32", "tl.float64") for module, text in sources.modules.items()}
    folder = Path(tempfile.mkdtemp())
    try:
        export.write(folder, export.Sources(sources.names, texts), name=name)
        sys.path.insert(0, str(folder))
        try:
            yield importlib.import_module(name)
        finally:
            sys.path.remove(str(folder))
    finally:
        for module in [one for one in sys.modules if one.split(".")[0] == name]:
            del sys.modules[module]
        shutil.rmtree(folder, ignore_errors=True)


NOT_TRIED = (
    ("compile", "torch.compile(fullgraph=True), torch.export and vmap", "an autograd.Function around Triton launches has no "
     "registered operator for them to see; `msda_core.ops` registers one with torch.library."),
    ("deterministic", "the same bits on every run", "atomics add in any order, so two runs differ in the last digits."),
    ("autocast", "mixed precision that casts by itself", "`check_inputs` refuses mixed 16-bit dtypes instead."),
)  # fmt: skip


def accept(*, progress: Callable[[str, int, int], None] | None = None) -> Certificate:
    """Run the whole suite on the learner's notebooks.

    Args:
        progress: called as progress(title, done, total) before each test.

    Returns:
        The certificate, which a notebook draws as a panel. Never raises because of what the notebooks hold.
    """
    theirs, missing = pieces()
    certificate = Certificate(theirs, missing)
    if device.NO_TRITON:
        certificate.rows.append(Row("triton", "kernels can run here", "not_run", device.NO_TRITON))
        return certificate
    if missing:
        return certificate
    op, launched = operator(), {}
    total = len(suite.TESTS) * (2 if device.ACTIVE.type == "cuda" else 1) + 4

    def step(name: str, title: str, run: Callable[[], Any], into: dict | None = launched) -> None:
        if progress is not None:
            progress(title, len(certificate.rows), total)
        certificate.rows.append(_run(name, title, run, into))

    for name, one in suite.TESTS.items():
        step(name, suite.title(name), lambda one=one: one(op, "cpu"))
    expected, layer = _ours(), _our_layer()
    step("equals_ours", _first(_equals_ours), lambda: _equals_ours(op, expected))
    step("layer_equals_ours", _first(_layer_equals_ours), lambda: _layer_equals_ours(op, layer))
    try:
        sources = export.collect()
        with _in_double(sources) as doubled:
            step("gradcheck", _first(_gradcheck), lambda: _gradcheck(doubled), into={})
    except export.NotYours as why:
        certificate.rows.append(Row("gradcheck", "it can be read out of the notebooks", "fail", str(why)))
    certificate.rows.append(_own_kernels(launched))
    certificate.kernels = {name: str(Path(file).name) for name, file in launched.items()}
    if device.ACTIVE.type == "cuda":
        for name, one in suite.TESTS.items():
            step(f"{name}_on_gpu", f"{suite.title(name)}, on the GPU", lambda one=one: one(op, "cuda"), into=None)
    else:
        certificate.rows.append(
            Row("on_gpu", "the same on a GPU, and faster than mmcv's", "not_run", "needs a CUDA GPU, found none.")
        )
    certificate.rows += [Row(name, title, "not_run", why) for name, title, why in NOT_TRIED]
    return certificate


def _first(function: Callable) -> str:
    return function.__doc__.strip().splitlines()[0].rstrip(".")


def _run(name: str, title: str, run: Callable[[], Any], launched: dict | None) -> Row:
    from msda_core import machine

    def note(launch):
        function = getattr(launch.kernel, "fn", launch.kernel)
        launched[launch.name] = function.__code__.co_filename

    around = contextlib.nullcontext if launched is None else lambda: machine.guard(launched=note)
    outcome = call(run, (), limit=LIMIT, around=around)
    row = lambda status, message="": Row(name, title, status, message, round(outcome.seconds, 2))  # noqa: E731
    if outcome.timeout is not None:
        return row("fail", f"stopped after {LIMIT:g} s.")
    if outcome.reached:
        return row("fail", f"the operator calls {outcome.reached}, which is not yours.")
    if isinstance(outcome.error, (suite.NotHere, NotRun)):
        return row("not_run", str(outcome.error))
    if outcome.error is not None:
        said = str(outcome.error).strip().splitlines()
        kind = "" if isinstance(outcome.error, AssertionError) else f"{type(outcome.error).__name__}: "
        return row("fail", f"{kind}{said[0] if said else 'no message'}")
    return row("pass", outcome.value if isinstance(outcome.value, str) else "")


def _own_kernels(launched: dict[str, str]) -> Row:
    """That what computed are kernels, and that they are the learner's: by the file they were compiled from."""
    title = "what computed are kernels from your own notebooks"
    homes = {str(notebook_path(lab)) for lab in ("04", "05", "06", "08", "09", "10")}
    strangers = {name: file for name, file in launched.items() if file not in homes}
    if not launched:
        return Row("own_kernels", title, "fail", "no kernel was launched: something else did the computing.")
    if strangers:
        named = ", ".join(f"{name} of {Path(file).name}" for name, file in strangers.items())
        return Row("own_kernels", title, "fail", f"these are not: {named}.")
    return Row("own_kernels", title, "pass", f"{', '.join(launched)}")


def export_package(folder: Path, certificate: Certificate, name: str = "my_msda") -> Path:
    """Write the accepted operator as a package, with the tests it passed.

    Raises:
        export.NotYours: there is no certificate, or the notebooks have changed since.
    """
    if certificate.state != "issued":
        raise export.NotYours(certificate.summary)
    passed = [row.name for row in certificate.rows if row.status == "pass" and row.name in suite.TESTS]
    return export.write(folder, export.collect(), name=name, passed=passed, certificate=certificate.json())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m checks.ship.acceptance", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the certificate as JSON")
    parser.add_argument("--export", metavar="FOLDER", type=Path, help="write the accepted operator there, as a package")
    options = parser.parse_args(argv)
    said = lambda title, done, total: print(f"[{done + 1}/{total}] {title}", file=sys.stderr, flush=True)  # noqa: E731
    certificate = accept(progress=said)
    print(json.dumps(certificate.json(), indent=1) if options.json else certificate.text())
    if options.export and certificate.state == "issued":
        print(f"Exported to {export_package(options.export, certificate)}", file=sys.stderr)
    return 0 if certificate.state == "issued" else 1


if __name__ == "__main__":
    sys.exit(main())
