"""Two profiles of one script, from two commits: what grew, and on which line."""

from collections import defaultdict
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

__all__ = ["differences"]

_NUMBERS = ("registers", "spills", "shared", "unique_bytes")


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """A line of text for each thing that changed; empty if nothing did.

    Launches are paired by kernel and order; of autotuned ones, the configs predicted to be the best are compared. Lines
    of the source are paired by their text and order, since their numbers shift.
    """
    found = []
    if before["target"] != after["target"]:
        found.append(f"The targets differ: {before['target']} before, {after['target']} after.")
    old, new = _keyed(before), _keyed(after)
    for key in [*old, *(k for k in new if k not in old)]:
        name = key[0] + (f", launch {key[1] + 1} of it" if key[1] else "")
        if key not in new:
            found.append(f"{name} is no longer launched.")
        elif key not in old:
            found.append(f"{name} is new: {_sectors(new[key])}.")
        else:
            found += [f"{name}: {text}" for text in _changes(old[key], new[key])]
    return found


def _keyed(data: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    seen: dict[str, int] = defaultdict(int)
    keyed = {}
    for record in data["launches"]:
        if record["best"]:
            keyed[record["kernel"], seen[record["kernel"]]] = record
            seen[record["kernel"]] += 1
    return keyed


def _sectors(record: dict[str, Any]) -> str:
    return record["refused"] or f"{record['sectors']:,} sectors, {record['registers']} registers"


def _change(what: str, a: float, b: float) -> str:
    ratio = f", {b / a:.2f} times" if a else ""
    return f"{what} {'grew' if b > a else 'fell'} from {a:,} to {b:,}{ratio}"


def _changes(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    if a["refused"] or b["refused"]:
        return [] if a["refused"] == b["refused"] else [f"was: {_sectors(a)}; is: {_sectors(b)}"]
    found = []
    if a["autotuned"] and a["config"] != b["config"]:
        found.append(f"the best config was {a['config']} and is {b['config']}.")
    if a["grid"] != b["grid"]:
        found.append(f"the grid was {tuple(a['grid'])} and is {tuple(b['grid'])}.")
    for kind in ("loads", "stores", "atomics"):
        for what in ("requests", "sectors"):
            if a[kind][what] != b[kind][what]:
                found.append(_change(f"{kind[:-1]} {what}", a[kind][what], b[kind][what]) + ".")
    found += [_change(name, a[name], b[name]) + "." for name in _NUMBERS if a[name] != b[name]]
    for was, now in _paired(list(a["by_line"].values()), list(b["by_line"].values())):
        if was is None:
            found.append(
                f"line {now['line']} `{now['text']}` is new: {now['requests']:,} requests, {now['sectors']:,} sectors."
            )
        elif now is None:
            found.append(f"line {was['line']} `{was['text']}` is gone: {was['sectors']:,} sectors less.")
        else:
            grown = [_change(w, was[w], now[w]) for w in ("requests", "sectors") if was[w] != now[w]]
            edited = "" if was["text"] == now["text"] else f" (was `{was['text']}`)"
            if grown:
                found.append(f"line {now['line']} `{now['text']}`{edited}: {'; '.join(grown)}.")
    return found


def _paired(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[tuple]:
    """Lines of the two sources that belong together; None beside one that has no counterpart."""
    match = SequenceMatcher(None, [v["text"] for v in before], [v["text"] for v in after], autojunk=False)
    for _, i, j, k, m in match.get_opcodes():
        yield from zip_longest(before[i:j], after[k:m])
