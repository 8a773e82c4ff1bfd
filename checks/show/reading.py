"""python -m checks render OUT: the reading edition, every lab as a static page, with an index and a glossary.

The pages need no Python, no server, no scripts and no network: fit for a projector, a web host or paper. Widgets stand
still in them.
"""

import html
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks.answers import notebook
from checks.answers.carry import solution_module
from checks.catalogue import LABS
from checks.core.exercise import lab_exercises
from checks.show import static
from checks.show.glossary import GLOSSARY, anchor, words_of

__all__ = ["render"]

STYLE = (
    "body{max-width:62rem;margin:2rem auto;padding:0 1rem;font:1.05rem/1.55 system-ui,sans-serif;color-scheme:light dark}"
    "dt{font-weight:600;margin-top:.8em}dd{margin-left:1.2em}td,th{padding:.25em .8em .25em 0;text-align:left}"
    "table{display:block;overflow-x:auto;max-width:100%}pre{overflow-x:auto;padding:.7em 1em;border:1px solid #8884;border-radius:.4em}"
    "pre,code{font:.88rem/1.45 ui-monospace,monospace}nav{display:flex;justify-content:space-between;margin:1em 0}"
    "aside,.widget{border-left:3px solid currentColor;padding:.1em .8em;margin:.6em 0}span.widget{display:inline-block}"
    ".paragraph{display:block;margin:.8em 0}summary .paragraph,span.widget .paragraph{display:inline;margin:0}summary{cursor:pointer}math[display=block]{margin:1em 0}"
    "@media print{pre{white-space:pre-wrap}nav{display:none}}"
)


def render(out: Path, labs: list[str], solved: bool) -> list[Path]:
    """Write the pages.

    Args:
        out: a folder; made if it is not there. Pages of the same names are replaced.
        labs: lab numbers, "01".
        solved: with the solutions in their cells, or blank.

    Returns:
        The files written.

    Raises:
        RuntimeError: a lab could not be run; the message holds what Python said.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory(prefix="reading-") as folder:
        copies, texts = Path(folder), {}
        for lab in labs:
            text = notebook.notebook_path(lab).read_text(encoding="utf-8")
            change = notebook.solve if solved else notebook.reset
            texts[lab] = change(text, lab, solution_module(lab))
            notebook.notebook_path(lab, copies).write_text(texts[lab], encoding="utf-8")
        for lab in labs:
            page = out / f"{LABS[lab].notebook}.html"
            # Each in a process of its own: no lab meets what another one left behind.
            command = [sys.executable, "-m", "checks.show.reading", str(notebook.notebook_path(lab, copies))]
            environment = {**os.environ, "MSDA_LABS": str(copies), "MSDA_READING": "1"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
            if done.returncode:
                raise RuntimeError(f"lab {lab} could not be run: {done.stderr.strip()}")
            _page(
                page,
                f"{lab} · {LABS[lab].title}",
                _between(lab, labs) + done.stdout + _between(lab, labs),
                heading=False,
            )
            written.append(page)
            print(f"{page.name}", flush=True)
        written += [_index(out, labs, solved), _glossary(out, texts)]
    return written


def _lab(path: Path) -> str:
    """A notebook's cells as HTML, in order: the code a reader should see, and what it shows."""
    parts = []
    for cell in static.cells_of(path):
        if not cell.hidden:
            parts.append(static.python(cell.code))
        if cell.output is not None:
            parts.append(f"<div>{static.plain(cell.output)}</div>")
    return "\n".join(parts)


def _between(lab: str, labs: list[str]) -> str:
    """The way to the pages before and after."""
    at = labs.index(lab)
    before, after = labs[at - 1 : at] if at else [], labs[at + 1 : at + 2]

    def link(other, arrow):
        return f'<a href="{LABS[other].notebook}.html">{arrow.format(html.escape(LABS[other].title))}</a>'

    return (
        f"<nav><span>{link(before[0], '← {}') if before else ''}</span>"
        f'<span><a href="index.html">The labs</a> · <a href="glossary.html">Glossary</a></span>'
        f"<span>{link(after[0], '{} →') if after else ''}</span></nav>"
    )


def _index(out: Path, labs: list[str], solved: bool) -> Path:
    rows = "".join(
        f'<tr><td>{lab}</td><td><a href="{LABS[lab].notebook}.html">{html.escape(LABS[lab].title)}</a></td>'
        f"<td>{', '.join(f'<code>{e.function}</code>' for e in lab_exercises(lab))}</td></tr>"
        for lab in labs
    )
    kind = "with solutions" if solved else "with blanks"
    return _page(
        out / "index.html",
        "Rebuild multi-scale deformable attention",
        f"<p>The labs, {kind}. To work on them, open the notebooks; these pages are for reading.</p>"
        f"<table><tr><th></th><th>lab</th><th>what one writes</th></tr>{rows}</table>"
        '<p><a href="glossary.html">Glossary</a></p>',
    )


def _glossary(out: Path, texts: dict[str, str]) -> Path:
    used = {lab: set(words_of(text)) for lab, text in texts.items()}
    items = "".join(
        f'<dt id="{anchor(term)}">{html.escape(term)}</dt><dd>{html.escape(definition)} '
        + " ".join(f'<a href="{LABS[lab].notebook}.html">{lab}</a>' for lab in texts if term in used[lab])
        + "</dd>"
        for term, definition in GLOSSARY.items()
    )
    return _page(out / "glossary.html", "Glossary", f'<dl>{items}</dl><p><a href="index.html">The labs</a></p>')


def _page(path: Path, title: str, body: str, heading: bool = True) -> Path:
    title = html.escape(title)
    path.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}{static.CODE_STYLE}</style></head><body>"
        f"{f'<h1>{title}</h1>' if heading else ''}{body}</body></html>\n",
        encoding="utf-8",
    )
    return path


if __name__ == "__main__":
    print(_lab(Path(sys.argv[1])))
