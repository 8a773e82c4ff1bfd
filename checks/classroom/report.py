"""What a host looks at: one page, with nothing to fetch and no scripts.

Who passed what, which mistakes the class makes most and how such an answer looks, where the time went, which submissions
are the same, and what a marker should look at.
"""

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from checks.catalogue import LABS
from checks.classroom.likeness import alike, most

__all__ = ["page", "summary"]

#: State → (sign, word, colours by day and by night). The sign carries the state; the colour repeats it.
SIGNS = {
    "pass": ("✓", "passed", "#1a7f4b", "#5fd39a"),
    "fail": ("✗", "failed", "#b3261e", "#ff8a80"),
    "crash": ("!", "crashed", "#8a5a00", "#ffc65c"),
    "todo": ("○", "to do", "#5b6472", "#a8b1bf"),
    "not_run": ("–", "not run", "#5b6472", "#a8b1bf"),
}
STYLE = (
    "body{margin:1.5rem auto;max-width:80rem;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif}"
    ":root{color-scheme:light dark}li,p,h3{overflow-wrap:anywhere}"
    "h2{margin-top:2em}table{border-collapse:collapse}.wide{overflow-x:auto}td,th{padding:.2em .55em;text-align:left;"
    "border-bottom:1px solid #8883;vertical-align:top}thead th{vertical-align:bottom}thead .turn{writing-mode:sideways-lr;"
    "font-weight:500;font-size:.85rem;white-space:nowrap;padding:.4em .1em}td.s{text-align:center;font-weight:700}"
    "tbody th{font-weight:500;min-width:8rem;max-width:16rem;overflow-wrap:anywhere}"
    "pre{background:#8881;padding:.6em .9em;overflow-x:auto;font:.85rem/1.4 ui-monospace,monospace}"
    ".bar{display:inline-block;height:.7em;background:currentColor;opacity:.55;vertical-align:baseline}"
    "small{opacity:.75}summary{cursor:pointer}"
    + "".join(f".{key}{{color:light-dark({day},{night})}}" for key, (_, _, day, night) in SIGNS.items())
)


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Per exercise: how many passed, and the mistakes that the class makes most."""
    lines: list[str] = []
    by_exercise: dict[tuple, list] = {}
    for row in rows:
        if row["lab"]:
            by_exercise.setdefault((row["lab"], row["exercise"]), []).append(row)
    for (lab, exercise), those in by_exercise.items():
        states = Counter(row["status"] for row in those)
        lines.append(f"{lab}.{exercise}: " + ", ".join(f"{states[s]} {s}" for s in SIGNS if states[s]))
        for mistake, count in most((row["mistake"] for row in those if row["mistake"]), 3):
            lines.append(f"    {count} × {mistake}")
    for row in rows:
        if not row["lab"]:
            lines.append(f"{row['submission']}: {'' if row['status'] == 'todo' else 'it '}{row['message']}")
    lines.append(f"{len({row['submission'] for row in rows})} submissions graded")
    return "\n".join(lines)


def page(rows: Mapping[str, Sequence[Mapping]], entries: Mapping[str, Mapping], notes: Sequence[str] = ()) -> str:
    """The report as HTML.

    Args:
        rows: submission → its rows.
        entries: submission → its entry in the log.
        notes: lines for the top, such as what the sandbox protects.
    """
    graded = {name: those for name, those in rows.items() if those[0]["lab"]}
    columns = list(dict.fromkeys((row["lab"], row["exercise"]) for those in graded.values() for row in those))
    parts = [
        _head(rows, notes),
        _who(graded, columns),
        _mistakes(graded, entries, columns),
        _time(graded, entries),
        _same(entries),
        _look(rows),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>The class</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _t(text: Any) -> str:
    return html.escape(str(text), quote=True)


def _head(rows: Mapping[str, Sequence[Mapping]], notes: Sequence[str]) -> str:
    every = [row for those in rows.values() for row in those if row["lab"]]
    states = Counter(row["status"] for row in every)
    counts = ", ".join(f"{states[s]} {word}" for s, (_, word, *_) in SIGNS.items() if states[s])
    lines = "".join(f"<p><small>{_t(note)}</small></p>" for note in notes)
    return f"<h1>The class</h1><p>{len(rows)} submissions; of {len(every)} answers {_t(counts) or 'none'}.</p>{lines}"


def _who(graded: Mapping[str, Sequence[Mapping]], columns: Sequence[tuple]) -> str:
    if not graded:
        return ""
    heads = "".join(f'<th scope="col" class="turn">{lab} {_t(exercise)}</th>' for lab, exercise in columns)
    body = ""
    for name, those in sorted(graded.items(), key=lambda one: (-_passed(one[1]), one[0])):
        cells = {(row["lab"], row["exercise"]): row for row in those}
        body += f'<tr><th scope="row">{_t(name)}</th><td>{_passed(those)}</td>'
        body += "".join(_sign(cells[column]) if column in cells else "<td></td>" for column in columns) + "</tr>"
    foot = "".join(
        f"<td>{sum(row['status'] == 'pass' for those in graded.values() for row in those if (row['lab'], row['exercise']) == column)}</td>"
        for column in columns
    )
    key = " · ".join(f'<span class="{s}">{sign}</span> {word}' for s, (sign, word, *_) in SIGNS.items())
    return (
        f'<h2>Who passed what</h2><p>{key}</p><div class="wide"><table><thead><tr><th scope="col">submission</th>'
        f'<th scope="col">passed</th>{heads}</tr></thead><tbody>{body}</tbody>'
        f'<tfoot><tr><th scope="row">passed</th><td></td>{foot}</tr></tfoot></table></div>'
    )


def _passed(those: Sequence[Mapping]) -> int:
    return sum(row["status"] == "pass" for row in those)


def _sign(row: Mapping) -> str:
    sign, word, *_ = SIGNS[row["status"]]
    said = f"{row['exercise']}: {word}. {row['mistake'] or row['message']}".strip()
    return f'<td class="s {row["status"]}" title="{_t(said)}" aria-label="{_t(word)}">{sign}</td>'


def _mistakes(graded: Mapping[str, Sequence[Mapping]], entries: Mapping, columns: Sequence[tuple]) -> str:
    body = ""
    for lab, exercise in columns:
        wrong = [
            (name, row)
            for name, those in graded.items()
            for row in those
            if (row["lab"], row["exercise"]) == (lab, exercise) and row["status"] in ("fail", "crash")
            if exercise in entries.get(name, {}).get("labs", {}).get(lab, {}).get("verdicts", {})  # it was graded
        ]
        if not wrong:
            continue
        body += f"<h3>{lab}.{_t(exercise)}: {len(wrong)} of {len(graded)}</h3><ul>"
        # Mistakes that have a name first: of these there is something to explain.
        known = most((row["mistake"] for _, row in wrong if row["mistake"]), 4)
        others = most((row["message"] for _, row in wrong if not row["mistake"]), 5 - len(known))
        for said, count in [*known, *others]:
            example = next(name for name, row in wrong if (row["mistake"] or row["message"]) == said)
            named = any(row["mistake"] == said for _, row in wrong)
            code = entries[example]["labs"][lab]["verdicts"][exercise]["code"]
            shown = (
                f"<details><summary>an answer that does this</summary><pre>{_t(code)}</pre></details>" if code else ""
            )
            body += f"<li>{count} × {'answers that come out ' if named else ''}{_t(said)}{shown}</li>"
        body += "</ul>"
    return f"<h2>What to explain again</h2>{body or '<p>Nothing that was handed in is wrong.</p>'}"


def _time(graded: Mapping[str, Sequence[Mapping]], entries: Mapping) -> str:
    spent: dict[str, list[float]] = {}
    for name in graded:
        for lab, part in entries.get(name, {}).get("labs", {}).items():
            if "cpu" in part:
                spent.setdefault(lab, []).append(part["cpu"])
    if not spent:
        return ""
    longest = max(map(sum, spent.values())) or 1.0
    body = "".join(
        f"<tr><td>{lab} {_t(LABS[lab].title)}</td><td>{sum(times):.1f} s</td><td>{sorted(times)[len(times) // 2]:.1f} s</td>"
        f'<td>{max(times):.1f} s</td><td><span class="bar" style="width:{20 * sum(times) / longest:.2f}em"></span></td></tr>'
        for lab, times in sorted(spent.items())
    )
    return (
        '<h2>Where the time went</h2><p>Processor time of grading, one lab of one submission.</p><div class="wide"><table><thead><tr>'
        '<th scope="col">lab</th><th scope="col">in all</th><th scope="col">median</th><th scope="col">longest</th>'
        f"<th></th></tr></thead><tbody>{body}</tbody></table></div>"
    )


def _same(entries: Mapping[str, Mapping]) -> str:
    body = "".join(
        f"<li>{_t(', '.join(names))}<br><small>{_t(', '.join(exercises))}</small></li>"
        for names, exercises in alike(entries)
    )
    explain = (
        "All their longer answers agree, but for names of variables, comments and spaces. It proves nothing by itself."
    )
    return f"<h2>Submissions that are the same</h2>{f'<p>{explain}</p><ul>{body}</ul>' if body else '<p>None.</p>'}"


def _look(rows: Mapping[str, Sequence[Mapping]]) -> str:
    body = ""
    for name, those in rows.items():
        flags = list(dict.fromkeys(row["flag"] for row in those if row["flag"]))
        if not those[0]["lab"]:
            flags.append(f"{'' if those[0]['status'] == 'todo' else 'it '}{those[0]['message']}")
        if flags:
            body += f"<li><strong>{_t(name)}</strong>: {_t('; '.join(flags))}</li>"
    return f"<h2>To look at by hand</h2>{f'<ul>{body}</ul>' if body else '<p>Nothing.</p>'}"
