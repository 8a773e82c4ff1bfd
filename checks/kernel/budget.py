"""Traffic as part of a verdict: what an answer's kernels request, beside what the reference's do.

Correct but wasteful is a `fail` of its own kind: it names the line that asks for most of the difference, and draws what
that line's lanes ask for.
"""

import math
from typing import Any

from checks.core.call import quote
from checks.core.exercise import Failed

__all__ = ["within_budget"]

SECTOR = 32


def within_budget(mine: Any, theirs: Any, budget: float, whose: str = "the reference kernel") -> str:
    """Compare the sectors two kernels request for the same call.

    Args:
        mine, theirs: `machine.Report` of the answer's kernel and of the reference's, whose tensors come in the same order.
        budget: how many times the reference's sectors pass.
        whose: what the message calls the reference.

    Returns:
        A note: both counts.

    Raises:
        Failed: nothing was requested, or more than the budget. Its key holds the tensor that most of it is asked of, and how many times too much,
            in powers of the root of two.
    """
    if theirs.sectors and not mine.sectors:
        raise Failed("the kernel asks memory for nothing, so it cannot have done the work.", key=("asks for nothing",))
    allowed = math.floor(budget * theirs.sectors)
    counted = f"{mine.sectors:,} sectors requested, by {whose} {theirs.sectors:,}"
    if mine.sectors <= allowed:
        return f"{counted}; up to {allowed:,} pass."
    own, other = _by_tensor(mine), _by_tensor(theirs)
    tensor = max(range(len(own)), key=lambda n: own[n][1] - other[n][1])
    name, asked, sites = own[tensor]
    needed = other[tensor][1]
    worst = max(sites, key=lambda site: site.sectors)
    frame = worst.site.frames[-1]
    where = quote(frame.filename, frame.lineno)
    share = worst.bytes / (worst.sectors * SECTOR)
    spent = (
        f"Of each 32 bytes it fetches, {share * SECTOR:.2g} are used."
        if share < 0.9
        else "All it fetches is used, but it fetches more than once or more than is needed."
    )

    def draw():
        from msda_core.figures.tiles import lanes_and_sectors
        from msda_core.machine.counts.calls import worst_request

        request = worst_request(mine, worst)
        return None if request is None else lanes_and_sectors(request, f"{where.replace('`', '')}: one request")

    raise Failed(
        f"right, but wasteful: {counted}, and up to {allowed:,} pass. Most of the difference is at {where}: {asked:,} "
        f"sectors of `{name}` are requested, and {needed:,} by {whose}. {spent}",
        key=("wasteful", tensor, round(2 * math.log2(max(1, asked) / max(1, needed)))),
        picture=draw,
    )


def _by_tensor(report: Any) -> list[tuple[str, int, list]]:
    """(name, sectors, operations) of each tensor argument, in their order."""
    owner = {event.site: event.tensor for event in report.trace.events}
    rows = []
    for name in report.trace.tensors:
        sites = [site for site in report.sites if owner.get(site.site) == name]
        rows.append((name, sum(site.sectors for site in sites), sites))
    return rows
