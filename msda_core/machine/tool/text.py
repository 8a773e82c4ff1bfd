"""A profile as text for a terminal."""

from pathlib import Path
from typing import Any

__all__ = ["fetched", "report", "some"]

_SECTOR = 32


def report(data: dict[str, Any]) -> str:
    """The whole document, launch by launch."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for record in data["launches"]:
        groups.setdefault(record["launch"], []).append(record)
    parts = []
    for records in groups.values():
        if len(records) > 1:
            parts.append(_configs(records))
        parts.append(_launch(next(r for r in records if r["best"]), data["target"]))
    labels = dict.fromkeys(r["estimate"]["label"] for r in data["launches"] if not r["refused"])
    return "\n\n".join([*parts, *(f"About the estimates. {label}" for label in labels)])


def _configs(records: list[dict[str, Any]]) -> str:
    """All configs of one autotuned launch, the predicted best marked."""
    names = [k for k in records[0]["config"] if len({str(r["config"].get(k)) for r in records}) > 1] or ["num_warps"]
    head = ["", *names, "requests", "sectors", "registers", "spills", "estimate"]
    rows = [head]
    for r in records:
        own = [str(r["config"].get(n, "")) for n in names]
        if r["refused"]:
            rows.append(["", *own, "refused: " + r["refused"][:70], "", "", "", ""])
            continue
        time = f"{1e6 * r['estimate']['seconds']:.1f} µs"
        rows.append(
            ["best" if r["best"] else "", *own, f"{r['requests']:,}", f"{r['sectors']:,}", str(r["registers"]),
             str(r["spills"]), time]
        )  # fmt: skip
    widths = [
        max(len(row[i]) for row in rows if not row[len(names) + 1].startswith("refused")) for i in range(len(head))
    ]
    title = f"{records[0]['kernel']}, launch {records[0]['launch']}: {len(records)} configs; best as the model predicts"
    return "\n".join([title, *("  ".join(c.rjust(w) for c, w in zip(row, widths)).rstrip() for row in rows)])


def _launch(r: dict[str, Any], target: str) -> str:
    config = ", ".join(f"{k}={v}" for k, v in r["config"].items())
    lines = [f"{r['kernel']}, launch {r['launch']}: grid {tuple(r['grid'])}, {config}, {target}"]
    if r["refused"]:
        return "\n".join([*lines, f"  not counted: {r['refused']}"])
    if r["sampled"] is not None:
        programs = r["grid"][0] * r["grid"][1] * r["grid"][2]
        lines.append(
            f"  sampled: {r['sampled']:,} of {programs:,} programs ran; counts are extrapolated, to within "
            f"{r['error']:.1%} (95 %). The outputs hold only what these wrote."
        )
    lines += ["", *_source(r), ""]
    for kind in ("loads", "stores", "atomics"):
        t = r[kind]
        if t["requests"]:
            lines.append(
                f"  {kind:>8}: {some(t['requests'], 'request')}, {some(t['sectors'], 'sector')}, {t['efficiency']:.0%} useful"
            )
    lines.append(
        f"  compulsory: {r['unique_bytes']:,} bytes read, {r['written_bytes']:,} written; "
        f"{_SECTOR * r['sectors']:,} asked of the caches"
    )
    if r["atomics"]["requests"]:
        c = r["contention"]
        lines.append(
            f"  reductions: at most {some(c['lanes'], 'lane')} of a request at one address, {some(c['updates'], 'update')} of "
            f"one address, {some(c['programs'], 'program')} at one 128-byte line"
        )
    held = r["occupancy"]
    lines.append(
        f"  {r['registers']} registers, {r['spills']} bytes spilled, {r['shared']:,} bytes of shared memory; occupancy "
        f"{held['fraction']:.0%} ({some(held['programs'], 'program')}, {some(held['warps'], 'warp')}), limited by {held['limit']}"
    )
    guess = r["estimate"]
    lines.append(f"  {guess['gpu']}: about {1e6 * guess['seconds']:.1f} µs ({guess['bound']})")
    if r["worst"]:
        lines += ["", *_lanes(r["worst"])]
    return "\n".join(lines)


def _source(r: dict[str, Any]) -> list[str]:
    """The lines that touch memory, with their counts; lines of the kernel's own file in full."""
    counts = {v["line"]: v for v in r["by_line"].values() if v["file"] == r["file"]}
    rows = [f"  {'requests':>10} {'sectors':>10} {'useful':>7} {'width':>5}  line"]
    try:
        text = Path(r["file"]).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        text = []
    shown = range(max(1, r["line"]), max(counts, default=0) + 1) if text else sorted(counts)
    for number in shown:
        source = text[number - 1] if 0 < number <= len(text) else counts[number]["text"]
        rows.append(_row(counts.get(number), f"{number:>5}  {source}"))
    for key, v in r["by_line"].items():
        if v["file"] != r["file"]:
            rows.append(_row(v, f"{key}  {v['text']}"))
    return rows


def _row(v: dict[str, Any] | None, source: str) -> str:
    if v is None:
        return f"  {'':>10} {'':>10} {'':>7} {'':>5}  {source}"
    if not v["requests"]:
        return f"  {'removed':>10} {'':>10} {'':>7} {'':>5}  {source}"
    return f"  {v['requests']:>10,} {v['sectors']:>10,} {v['efficiency']:>7.0%} {v['width']:>4}B  {source}"


def _lanes(worst: dict[str, Any]) -> list[str]:
    """The lanes of the worst request, and how much of each sector they use."""
    used: dict[int, int] = {}
    for start in worst["addresses"]:
        for byte in range(start, start + worst["width"]) if start >= 0 else ():
            used[byte // _SECTOR] = used.get(byte // _SECTOR, 0) | 1 << byte % _SECTOR
    bars = [
        "".join("█" if mask >> 8 * q & 255 == 255 else "▄" if mask >> 8 * q & 255 else "░" for q in range(4))
        for _, mask in sorted(used.items())
    ]
    lanes = "".join("■" if a >= 0 else "·" for a in worst["addresses"])
    return [
        f"  line {worst['line']} wastes most, {worst['wasted_bytes']:,} bytes: `{worst['text']}`",
        f"  lanes    {lanes}",
        f"  sectors  {' '.join(bars)}",
        f"  {fetched(worst)} (each block is 8 bytes: █ used, ▄ in part, ░ not)",
    ]


def fetched(worst: dict[str, Any]) -> str:
    """What the request that is shown fetches, and how much of it it uses."""
    size, sectors = _SECTOR * worst["sectors"], some(worst["sectors"], "sector")
    if worst["useful"] < size:
        return f"one request fetches {sectors}, {size} bytes, and uses {worst['useful']}"
    return f"one request uses all of the {sectors} that it fetches, but other warps hold copies and fetch them again"


def some(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
