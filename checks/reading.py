"""python -m checks render OUT: the reading edition, every lab as a static page, with an index and a glossary.

The pages need no Python and no server: fit for a projector or a web host. Widgets stand still in them.
"""

import argparse
import html
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import notebook
from checks.carry import solution_module
from checks.exercise import LABS, lab_exercises
from checks.glossary import GLOSSARY, anchor, words_of

__all__ = ["main", "render"]

STYLE = (
    "body{max-width:46rem;margin:2rem auto;padding:0 1rem;font:1.05rem/1.55 system-ui,sans-serif;color-scheme:light dark}"
    "dt{font-weight:600;margin-top:.8em}dd{margin-left:1.2em}td,th{padding:.25em .8em .25em 0;text-align:left}"
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
        RuntimeError: marimo could not export a lab; the message holds what it said.
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
            page = out / f"{LABS[lab][0]}.html"
            command = [sys.executable, "-m", "marimo", "export", "html", str(notebook.notebook_path(lab, copies))]
            environment = {**os.environ, "MSDA_LABS": str(copies), "MSDA_READING": "1"}
            done = subprocess.run(
                [*command, "-o", str(page), "--force"], capture_output=True, text=True, env=environment, timeout=600
            )
            if done.returncode or not page.exists():
                raise RuntimeError(f"marimo could not export lab {lab}: {done.stderr.strip() or done.stdout.strip()}")
            written.append(page)
            print(f"{page.name}", flush=True)
        written += [_index(out, labs, solved), _glossary(out, texts)]
    return written


def _index(out: Path, labs: list[str], solved: bool) -> Path:
    rows = "".join(
        f'<tr><td>{lab}</td><td><a href="{LABS[lab][0]}.html">{html.escape(LABS[lab][1])}</a></td>'
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
        + " ".join(f'<a href="{LABS[lab][0]}.html">{lab}</a>' for lab in texts if term in used[lab])
        + "</dd>"
        for term, definition in GLOSSARY.items()
    )
    return _page(out / "glossary.html", "Glossary", f'<dl>{items}</dl><p><a href="index.html">The labs</a></p>')


def _page(path: Path, title: str, body: str) -> Path:
    path.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>{body}</body></html>\n",
        encoding="utf-8",
    )
    return path


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m checks render", description="Render the labs as static pages.")
    parser.add_argument("out", type=Path, metavar="OUT", help="a folder for the pages")
    parser.add_argument("--solved", action="store_true", help="with the solutions in their cells")
    parser.add_argument("--labs", nargs="+", metavar="LAB", help="lab numbers; all labs if not given")
    options = parser.parse_args(arguments)
    there = [lab for lab in LABS if lab_exercises(lab) and notebook.notebook_path(lab).exists()]
    labs = [word.zfill(2) for word in options.labs] if options.labs else there
    unknown = [lab for lab in labs if lab not in there]
    if unknown:
        raise ValueError(f"there is no lab {unknown[0]!r}. Labs are {', '.join(there)}.")
    written = render(options.out, labs, options.solved)
    print(f"{len(written)} pages in {options.out}; begin with {written[-2].name}.")
    return 0
