"""Answers written from the text alone: wrong ones are rejected, right ones accepted, and no name is false.

A sample runs always; `MSDA_BANK=1` tries all of them. `python -m checks.tests.test_bank [LAB or EXERCISE …]` prints what each
is told.
"""

import os
import sys
from collections import Counter

import pytest

from checks.catalogue import LABS
from checks.core.grade import grade
from checks.core.report import Report
from checks.tests.bank import Answer, answers

ALL = os.environ.get("MSDA_BANK") == "1"
EVERY = 15  # one in so many is in the sample
NAMED = 0.6  # share of the wrong ones that get a name, at least
#: The checks that a sample leaves out: each answer launches kernels for seconds.
SLOW = ("05", "06", "08", "09", "10")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Tests run side by side; what is slow here because of a neighbour is not wrong."""
    monkeypatch.setenv("MSDA_PATIENCE", os.environ.get("MSDA_PATIENCE", "5"))


BANK = list(answers())
CATALOGUE = [f"{lab}.{name}" for lab, entry in LABS.items() for name in entry.exercises]
SAMPLE = [one for one in BANK if ALL or one.exercise[:2] not in SLOW][:: 1 if ALL else EVERY]


def told(answer: Answer) -> Report:
    """What the grader says of an answer."""
    return grade(answer.exercise, answer.build(), seed=7, progress=False)


#: Names that a verdict once gave and that are not so.
FALSE = {
    "01.to_pixels: kept from below only": "without the half pixel",
    "01.bilinear_sample: zero beyond half a pixel": "when H and W are swapped",
    "02.contiguous_strides: prefix products": "when an axis counts its own size too",
    "02.msda_flat: NaN that was read made zero, no bounds": "when the strides of images and heads change places",
    "03.lru_hits: evicts one too late": "when the cache never forgets",
    "04.row_sum_kernel: the mask of the lanes": "when the load has no mask",
    "06.launch_config: D as it is": "when all points are taken at once, however many channels there are, and besides when "
    "BLOCK_D is D",
    "06.msda_fwd_fast_kernel: level = p // L": "when the level of a lane past the last point is looked up",
    "06.device_time: one flush, then a graph": "when dispatch is mistaken for the kernel",
    "09.accumulator_dtype: remembered by dtype": "when the rule is typed in, not read off a listing",
    "10.check_inputs: one message, without the number": "when levels must fill value",
    "04.softmax_kernel: the maximum begins at zero": "when lanes past the end of a row count as zero in the maximum",
    "05.msda_fwd_kernel: levels of level 0's size": "when the level's start is added twice",
    "06.launch_config: two warps for each multiprocessor": "when few queries are packed as tightly as many",
    "06.device_time: never flushed": "when one time is given twice",
    "10.MSDAFunction: a capability that is a constant of the notebook": "when every GPU is taken to be of capability 8.0",
    "10.tile_queries: float32": "when tiles that the level cuts are left out",
}
SAMPLE += [one for one in BANK if one.id in FALSE and one.exercise[:2] not in SLOW and one not in SAMPLE]
#: Wrong answers that still pass, and why. A check that catches one makes its row here fail.
OPEN: dict[str, str] = {}


def _marked(answer: Answer):
    marks = [pytest.mark.xfail(reason=OPEN[answer.id], strict=True)] if answer.id in OPEN else []
    return pytest.param(answer, id=answer.id, marks=marks)


#: Wrong answer → whether it was named, of those that this run tried.
TRIED: dict[str, bool] = {}


@pytest.mark.parametrize("answer", map(_marked, SAMPLE))
def test_right_ones_pass_and_wrong_ones_do_not(answer):
    report = told(answer)
    if answer.wrong:
        TRIED[answer.id] = report.mistake is not None
        assert report.state in ("fail", "crash"), f"it passes: {answer.wrong}"
        assert report.worst.name != "judged", report.text()
        assert not report.mistake or report.mistake.name != FALSE.get(answer.id), report.text()
        assert not report.lead or report.lead.name != FALSE.get(answer.id), report.text()
    else:
        assert report.state == "pass", report.text()


@pytest.mark.skipif(not ALL, reason="not run: MSDA_BANK=1 tries the whole bank, by the lab or at once")
def test_most_wrong_ones_are_named():
    assert TRIED and sum(TRIED.values()) >= NAMED * len(TRIED), [name for name, named in TRIED.items() if not named]


def test_the_bank_is_large():
    assert len(BANK) >= 600
    assert set(FALSE) <= {one.id for one in BANK}
    counts = Counter(one.exercise for one in BANK)
    assert not set(CATALOGUE) - set(counts), "there is no answer to these"
    assert min(counts.values()) >= 3, [name for name, count in counts.items() if count < 3]


def main(beginnings: list[str]) -> None:
    """Print, answer by answer, its state, the name it gets, and what else is said: of those that begin so."""
    seen = Counter()
    for answer in BANK:
        if beginnings and not answer.id.startswith(tuple(beginnings)):
            continue
        report = told(answer)
        bad = (report.state == "pass") == bool(answer.wrong)
        seen["answers"] += 1
        seen["misjudged"] += bad
        seen["wrong"] += bool(answer.wrong)
        seen["named"] += report.mistake is not None
        name = report.mistake.name if report.mistake else f"({report.lead.name})" if report.lead else "-"
        print(
            f"{'!!' if bad else '  '} {report.state:<7} {report.seconds:5.1f} s  {answer.id}\n{'':19}→ {name}",
            flush=True,
        )
        if bad or (answer.wrong and not report.mistake):
            print(f"{'':19}  {report.worst.name}: {report.worst.message[:200]}\n{'':19}  {report.differs}", flush=True)
    print(dict(seen))


if __name__ == "__main__":
    main(sys.argv[1:])
