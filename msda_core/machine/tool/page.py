"""A profile as one HTML file, without scripts or anything from outside."""

from html import escape
from pathlib import Path
from typing import Any

from msda_core.machine.tool.text import fetched, some

__all__ = ["page"]

_STYLE = """
:root{color-scheme:light dark;--ink:#1b2430;--soft:#556;--rule:#ccd;--hot:#fdebd0;--best:#e2f0e6;--no:#a33;--lane:#2f6db3;
--idle:#aab;--sector:#fbe3bd;--edge:#c77700}
@media(prefers-color-scheme:dark){:root{--ink:#dde3ea;--soft:#9aa7b5;--rule:#3a4350;--hot:#4a3515;--best:#1d3d2a;--no:#f08a80;
--lane:#6aa9ee;--idle:#5b6673;--sector:#4d3a18;--edge:#d9962e}body{background:#14191f}}
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:var(--ink)}
h2{margin-top:2.5rem;border-top:1px solid var(--rule);padding-top:1rem}
table{border-collapse:collapse;margin:.6rem 0}td,th{padding:.1rem .7rem;text-align:right;font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:600;white-space:nowrap}.t{text-align:left}
td.s{text-align:left;font-family:ui-monospace,monospace;white-space:pre;font-size:13px}
tr.hot{background:var(--hot)}tr.best{background:var(--best);font-weight:600}.scroll{overflow-x:auto}.no{color:var(--no)}
svg{display:block;min-width:720px}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
.on{fill:var(--lane);stroke:var(--lane)}.off{fill:none;stroke:var(--idle)}.sector{fill:var(--sector);stroke:var(--edge)}
@media(max-width:40rem){td,th{padding:.1rem .3rem;font-size:13px}td.s{font-size:12px}}
"""


def page(data: dict[str, Any]) -> str:
    """The document as a page: a table of launches, then each with its source, its numbers and its worst lanes."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for record in data["launches"]:
        groups.setdefault(record["launch"], []).append(record)
    parts = [f"<p>{escape(data['note'])}</p>"] if data["note"] else []
    for records in groups.values():
        best = next(r for r in records if r["best"])
        parts.append(f"<h2>{escape(best['kernel'])}, launch {best['launch']}</h2>")
        if len(records) > 1:
            parts.append(_configs(records))
        parts.append(_launch(best))
    title = f"Paper GPU, {data['target']}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        f"<h1>{title}</h1><p>{len(groups)} launches. Requests and sectors as Nsight Compute counts them; times are a "
        f"model's.</p>{''.join(parts)}{_label(data)}</html>"
    )


def _label(data: dict[str, Any]) -> str:
    """What the estimates are worth, once for each GPU state that occurs."""
    labels = dict.fromkeys(r["estimate"]["label"] for r in data["launches"] if not r["refused"])
    return "".join(f"<h2>About the estimates</h2><p>{escape(label)}</p>" for label in labels)


def _table(head: list[str], rows: list[tuple[str, list[Any]]]) -> str:
    def row_of(tag: str, row: list[Any]) -> str:
        """The first column is a name, the others are numbers."""
        return "".join(f"<{tag}{'' if i else ' class=t'}>{escape(str(c))}</{tag}>" for i, c in enumerate(row))

    cells = row_of("th", head)
    body = "".join(f"<tr{f' class={kind}' if kind else ''}>{row_of('td', row)}</tr>" for kind, row in rows)
    return f"<div class=scroll><table><tr>{cells}</tr>{body}</table></div>"


def _configs(records: list[dict[str, Any]]) -> str:
    rows = []
    for r in records:
        config = ", ".join(f"{k}={v}" for k, v in r["config"].items())
        numbers = (
            [r["refused"], "", "", "", ""]
            if r["refused"]
            else [f"{r['requests']:,}", f"{r['sectors']:,}", r["registers"], r["spills"],
                  f"{1e6 * r['estimate']['seconds']:.1f} µs"]
        )  # fmt: skip
        rows.append(("best" if r["best"] else "", [config, *numbers]))
    return _table(["config", "requests", "sectors", "registers", "spills", "estimate"], rows)


def _launch(r: dict[str, Any]) -> str:
    config = escape(", ".join(f"{k}={v}" for k, v in r["config"].items()))
    parts = [f"<p>Grid {tuple(r['grid'])}; {config}</p>"]
    if r["refused"]:
        return "".join([*parts, f"<p class=no>Not counted: {escape(r['refused'])}</p>"])
    if r["sampled"] is not None:
        parts.append(f"<p>Extrapolated from {r['sampled']:,} programs, to within {r['error']:.1%} (95 %).</p>")
    kinds = [
        ("", [k, f"{r[k]['requests']:,}", f"{r[k]['sectors']:,}", f"{r[k]['efficiency']:.0%}"])
        for k in ("loads", "stores", "atomics")
        if r[k]["requests"]
    ]
    held, guess = r["occupancy"], r["estimate"]
    parts += [
        _table(["", "requests", "sectors", "useful"], kinds),
        f"<p>{r['registers']} registers, {r['spills']} bytes spilled, {r['shared']:,} bytes of shared memory; occupancy "
        f"{held['fraction']:.0%} ({some(held['programs'], 'program')}, {some(held['warps'], 'warp')}), limited by {held['limit']}. "
        f"{escape(guess['gpu'])}: about {1e6 * guess['seconds']:.1f} µs ({escape(guess['bound'])}).</p>",
        f"<p>Compulsory: {r['unique_bytes']:,} bytes read, {r['written_bytes']:,} written; {32 * r['sectors']:,} asked of "
        "the caches.</p>",
        _source(r),
    ]
    if r["atomics"]["requests"]:
        c = r["contention"]
        parts.append(
            f"<p>Reductions: at most {some(c['lanes'], 'lane')} of a request at one address, {some(c['updates'], 'update')} of "
            f"one address, {some(c['programs'], 'program')} at one 128-byte line.</p>"
        )
    if r["worst"]:
        parts.append(_lanes(r["worst"]))
    return "".join(parts)


def _source(r: dict[str, Any]) -> str:
    counts = {v["line"]: v for v in r["by_line"].values() if v["file"] == r["file"]}
    try:
        text = Path(r["file"]).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        text = []
    hot = r["worst"]["line"] if r["worst"] else None
    rows = []
    shown = range(max(1, r["line"]), max(counts, default=0) + 1) if text else sorted(counts)
    for number in shown:
        source = text[number - 1] if 0 < number <= len(text) else counts[number]["text"]
        rows.append(_line(number, counts.get(number), source, number == hot))
    rows += [_line(key, v, v["text"], False) for key, v in r["by_line"].items() if v["file"] != r["file"]]
    return (
        "<div class=scroll><table><tr><th>requests</th><th>sectors</th><th>useful</th><th>width</th><th></th>"
        f"<th class=t>source, and bytes that a lane moves at once (width)</th></tr>{''.join(rows)}</table></div>"
    )


def _line(number: Any, v: dict[str, Any] | None, source: str, hot: bool) -> str:
    cells = (
        ["", "", "", ""]
        if v is None
        else [f"{v['requests']:,}", f"{v['sectors']:,}", f"{v['efficiency']:.0%}", f"{v['width']} B"]
        if v["requests"]
        else ["removed", "", "", ""]
    )
    inner = "".join(f"<td>{c}</td>" for c in [*cells, number])
    return f"<tr{' class=hot' if hot else ''}>{inner}<td class=s>{escape(source)}</td></tr>"


def _lanes(worst: dict[str, Any]) -> str:
    """The lanes of one request above, the sectors they touch below, blue where used."""
    active = [(lane, a) for lane, a in enumerate(worst["addresses"]) if a >= 0]
    sectors = sorted({s for _, a in active for s in range(a // 32, (a + worst["width"] - 1) // 32 + 1)})
    wide, step = 960, 960 / 32
    box = min(56.0, wide / max(1, len(sectors)) - 4)
    left = {s: i * (box + 4) for i, s in enumerate(sectors)}
    parts = []
    for s in sectors:
        parts.append(f'<rect x="{left[s]:.1f}" y="70" width="{box:.1f}" height="22" class="sector"/>')
    for lane, a in enumerate(worst["addresses"]):
        x = lane * step
        on = a >= 0
        parts.append(
            f'<rect x="{x + 1:.1f}" y="4" width="{step - 2:.1f}" height="18" class="{"on" if on else "off"}"/>'
        )
        if on:
            at = left[a // 32] + a % 32 / 32 * box
            length = min(worst["width"], 32 - a % 32) / 32 * box
            parts.append(
                f'<line x1="{x + step / 2:.1f}" y1="22" x2="{at + length / 2:.1f}" y2="70" class="on" opacity=".6"/>'
                f'<rect x="{at:.1f}" y="70" width="{length:.1f}" height="22" class="on"/>'
            )
    title = (
        f"Line {worst['line']} wastes most, {worst['wasted_bytes']:,} bytes. Of its requests of {some(len(active), 'lane')}, "
        f"{fetched(worst)}."
    )
    return (
        f'<p>{escape(title)}</p><div class=scroll><svg viewBox="0 0 {wide} 110" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}"
        '<text x="0" y="106">lanes of one warp above; sectors of 32 bytes below, blue where used</text></svg></div>'
    )
