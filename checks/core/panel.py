"""The panel in which a notebook shows a verdict; its frame serves every judgement of the course."""

import html
from collections.abc import Iterable
from typing import Any

__all__ = ["STATES", "code_html", "draw", "frame", "spoken"]

#: State → (glyph, word, colour variable). The glyph and the word carry the state; the colour only repeats it.
STATES = {
    "pass": ("✓", "PASS", "#1a7f4b", "#5fd39a"),
    "fail": ("✗", "FAIL", "#b3261e", "#ff8a80"),
    "crash": ("!", "CRASH", "#8a5a00", "#ffc65c"),
    "todo": ("○", "TODO", "#5b6472", "#a8b1bf"),
    "not_run": ("–", "NOT RUN", "#5b6472", "#a8b1bf"),
}

#: So many checks are listed whole when something is wrong; of more, the worst, and the others behind a click.
LISTED = 8


def code_html(text: str) -> str:
    """HTML-safe, with `code` in code elements."""
    parts = html.escape(text, quote=True).split("`")
    return "".join(part if i % 2 == 0 else f"<code>{part}</code>" for i, part in enumerate(parts))


def spoken(text: str) -> str:
    """HTML-safe, for an attribute that is read aloud: without the marks of code."""
    return html.escape(text.replace("`", ""), quote=True)


def frame(state: str, attributes: str, body: str, padding: str = ".6em") -> str:
    """A section with the colour of a state at its edge.

    Args:
        state: one of STATES.
        attributes: HTML attributes that name the section and say to a screen reader what it holds.
        body: HTML.
        padding: above and below.
    """
    _, _, light, dark = STATES[state]
    return (
        f'<section {attributes} style="--verdict:light-dark({light},{dark});border:1px solid var(--verdict);'
        f'border-left-width:6px;border-radius:6px;padding:{padding} .9em;font-size:.95rem;line-height:1.45">{body}</section>'
    )


def draw(report: Any) -> str:
    """A `Report` as a panel: `data-check` and `data-state` for tests and screen readers."""
    glyph, word, _, _ = STATES[report.state]
    ran = sum(c.status in ("pass", "fail", "crash") for c in report.checks)
    good = sum(c.status == "pass" for c in report.checks)
    summary = {
        "todo": "Write your answer in the cell above: the verdict follows as you run it.",
        "pass": f"{good} of {ran} checks hold.",
        "not_run": "Nothing was graded.",
    }.get(report.state, f"{good} of {ran} checks hold." + (" The rest was not tried." if report.worst.fatal else ""))
    if report.score:
        summary += f" Score: {report.score}"
    label = f"{report.name}: {word.lower()}. {summary}"
    if report.state in ("fail", "crash"):
        label += f" {report.worst.title}: {report.worst.message}"
    if report.mistake:
        label += f" Your answer is what you get {report.mistake.name}."
    body, rest = [], ""
    wrong = report.state in ("fail", "crash")
    if report.state != "todo":
        # A notebook cuts a tall output: of many checks the one to look at comes first, with what is known about it.
        first = [report.worst] if wrong and len(report.checks) > LISTED else report.checks
        listing = _rows(first)
        told = len(report.checks) <= LISTED and any(check.message for check in report.checks)
        if report.state == "pass" and not told and all(check.status != "not_run" for check in report.checks):
            listing = f'<details><summary style="cursor:pointer">What was checked</summary>{listing}</details>'
        elif len(first) < len(report.checks):
            others = [check for check in report.checks if check is not report.worst]
            rest = (
                '<details style="margin-top:.5em"><summary style="cursor:pointer">'
                f"The other {len(others)} checks</summary>{_rows(others)}</details>"
            )
        body.append(listing)
    if report.advice:
        body.append(f'<p class="advice" style="margin:.6em 0 0;font-weight:600">{code_html(report.advice)}</p>')
    if report.mistake:
        body.append(
            '<p class="mistake" style="margin:.6em 0 0;padding:.5em .8em;border-left:3px solid currentColor">'
            f"Your answer is what you get <strong>{code_html(report.mistake.name)}</strong>. {code_html(report.mistake.hint)}</p>"
        )
    for text, kind in ((report.differs, "differs"), (report.looks_like, "lead")):
        if text:
            body.append(f'<p class="{kind}" style="margin:.6em 0 0">{code_html(text)}</p>')
    picture = report.worst.picture() if wrong and report.worst.picture else None
    if picture is not None:
        body.append(f'<div style="margin-top:.6em">{picture._repr_html_()}</div>')
    body.append(rest)
    if report.state in ("fail", "crash") and report.worst.seed is not None:
        replay = f'checks.grade("{report.name}", {report.exercise.function}, seed={report.worst.seed})'
        body.append(
            '<details style="margin-top:.5em"><summary style="cursor:pointer">Look at this case again</summary>'
            f"In a cell of your own: <code>{code_html(replay)}</code></details>"
        )
    if report.printed and report.state in ("fail", "crash"):
        body.append(
            '<details style="margin-top:.5em"><summary style="cursor:pointer">What your code printed</summary>'
            f'<pre style="max-height:12em;overflow:auto">{code_html(report.printed)}</pre></details>'
        )
    seconds = (
        f'<span style="opacity:.7;font-weight:400">{report.seconds:.2f} s</span>' if report.state != "todo" else ""
    )
    label = spoken(label)
    return frame(
        report.state,
        f'data-check="{report.name}" data-state="{report.state}" role="status" aria-live="polite" aria-label="{label}"',
        f'<div style="font-weight:600"><span style="color:var(--verdict)"><span aria-hidden="true">{glyph}</span> {word}</span>'
        f" &nbsp;<code>{report.name}</code> &nbsp;{seconds}</div>"
        f"<div>{code_html(summary)}</div>{''.join(body)}",
    )


def _rows(checks: Iterable[Any]) -> str:
    rows, last = "", ""
    for check in checks:
        rows += _row(check, "The same." if check.message == last else check.message)
        last = check.message
    return f'<ul style="list-style:none;margin:.4em 0 0;padding:0">{rows}</ul>'


def _row(check: Any, said: str) -> str:
    glyph, word, light, dark = STATES[check.status]
    message = f"<br><span>{code_html(_sentence(said))}</span>" if check.message else ""
    return (
        f'<li style="margin:.3em 0;padding-left:1.6em;text-indent:-1.6em"><span style="color:light-dark({light},{dark});'
        f'font-weight:700;display:inline-block;width:1.6em;text-indent:0" role="img" aria-label="{word.lower()}">{glyph}</span>'
        f'<span style="text-indent:0">{code_html(_sentence(check.title))}{message}</span></li>'
    )


def _sentence(text: str) -> str:
    """A capital letter at the start, unless the word is code, as `x` or a name with an underscore is."""
    return text if not text or text[0] == "`" or "_" in text.split(" ")[0] else text[0].upper() + text[1:]
