"""One text file for each learner, to hand back: the verdict's words, and no solution."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.catalogue import LABS

__all__ = ["feedback", "write_feedback"]


def feedback(rows: Sequence[Mapping[str, Any]], entry: Mapping[str, Any]) -> str:
    """What a learner is told.

    Args:
        rows: the submission's rows.
        entry: its entry in the log, which holds the verdicts in full.
    """
    name = rows[0]["submission"]
    lines = [name, "=" * len(name), ""]
    if not rows[0]["lab"]:
        said = rows[0]["message"] if rows[0]["status"] == "todo" else f"It {rows[0]['message']}"
        return "\n".join([*lines, f"Nothing was graded. {said[:1].upper()}{said[1:]}", ""])
    for lab in dict.fromkeys(row["lab"] for row in rows):
        those = [row for row in rows if row["lab"] == lab]
        passed = sum(row["status"] == "pass" for row in those)
        lines += [f"Lab {lab} · {LABS[lab].title}: {passed} of {len(those)}", ""]
        verdicts = entry.get("labs", {}).get(lab, {}).get("verdicts", {})
        if not verdicts:
            lines += [f"  {those[0]['message']}", ""]
            continue
        for row in those:
            lines.append(verdicts.get(row["exercise"], {}).get("words", f"  {row['status']} {row['exercise']}"))
        lines.append("")
    return "\n".join(lines)


def write_feedback(folder: Path, rows: Mapping[str, Sequence[Mapping]], entries: Mapping[str, Mapping]) -> int:
    """Write a file for each submission into a folder. Returns how many. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for name, those in rows.items():
        stem = re.sub(r"[^\w.() -]", "_", name).strip(". ")[:120] or "submission"
        plain, count = stem, 2
        while stem.lower() in taken:
            stem, count = f"{plain} {count}", count + 1
        taken.add(stem.lower())
        (folder / f"{stem}.txt").write_text(feedback(those, entries.get(name, {})), encoding="utf-8")
    return len(rows)
