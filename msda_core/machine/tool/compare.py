"""Two profiles of one script, from two commits: what grew, and on which line."""

from collections import defaultdict
from typing import Any

__all__ = ["differences"]

_NUMBERS = ("registers", "spills", "shared", "unique_bytes")


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """A line of text for each thing that changed; empty if nothing did.

    Launches are paired by kernel, config and order. Lines of the source are paired by their text, since their numbers
    shift.
    """
    found = []
    if before["target"] != after["target"]:
        found.append(f"The targets differ: {before['target']} before, {after['target']} after.")
    old, new = _keyed(before), _keyed(after)
    for key in [*old, *(k for k in new if k not in old)]:
        name = f"{key[0]}" + (f" ({key[1]})" if key[1] else "") + (f", launch {key[2] + 1} of it" if key[2] else "")
        if key not in new:
            found.append(f"{name} is no longer launched.")
        elif key not in old:
            found.append(f"{name} is new: {_sectors(new[key])}.")
        else:
            found += [f"{name}: {text}" for text in _changes(old[key], new[key])]
    return found


def _keyed(data: dict[str, Any]) -> dict[tuple, dict[str, Any]]:
    seen: dict[tuple, int] = defaultdict(int)
    keyed = {}
    for record in data["launches"]:
        config = ", ".join(f"{k}={v}" for k, v in record["config"].items()) if record["autotuned"] else ""
        keyed[(record["kernel"], config, seen[record["kernel"], config])] = record
        seen[record["kernel"], config] += 1
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
    if a["grid"] != b["grid"]:
        found.append(f"the grid was {tuple(a['grid'])} and is {tuple(b['grid'])}.")
    for kind in ("loads", "stores", "atomics"):
        for what in ("requests", "sectors"):
            if a[kind][what] != b[kind][what]:
                found.append(_change(f"{kind[:-1]} {what}", a[kind][what], b[kind][what]) + ".")
    found += [_change(name, a[name], b[name]) + "." for name in _NUMBERS if a[name] != b[name]]
    before, after = _lines(a), _lines(b)
    for text in [*after, *(t for t in before if t not in after)]:
        was, now = before.get(text), after.get(text)
        if was is None:
            found.append(
                f"line {now['line']} `{text}` is new: {now['requests']:,} requests, {now['sectors']:,} sectors."
            )
        elif now is None:
            found.append(f"line {was['line']} `{text}` is gone: {was['sectors']:,} sectors less.")
        else:
            grown = [_change(w, was[w], now[w]) for w in ("requests", "sectors") if was[w] != now[w]]
            if grown:
                found.append(f"line {now['line']} `{text}`: {'; '.join(grown)}.")
    return found


def _lines(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By the text of the line; equal texts are added up."""
    lines: dict[str, dict[str, Any]] = {}
    for line in record["by_line"].values():
        mine = lines.setdefault(line["text"], {"line": line["line"], "requests": 0, "sectors": 0})
        mine["requests"] += line["requests"]
        mine["sectors"] += line["sectors"]
    return lines
