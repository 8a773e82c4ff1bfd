"""The command line: run, diff, verify."""

import argparse
import json
import sys
from pathlib import Path

from msda_core.machine import errors
from msda_core.machine.compile.lower import parse_target
from msda_core.machine.tool import budgets, compare, data, script
from msda_core.machine.tool.page import page
from msda_core.machine.tool.pretend import pretending
from msda_core.machine.tool.session import session
from msda_core.machine.tool.text import report

__all__ = ["main"]

_STATUS = "Exit status: 0; 1 if a budget was broken or the script failed; 2 if the command itself is wrong."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m msda_core.machine",
        description="What a profiler would say about a script's Triton kernels, without a GPU.",
        epilog=_STATUS,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run a script, unedited, and profile each Triton launch in it", epilog=_STATUS)
    run.add_argument("--kernel", metavar="NAME", help="count only this kernel; the others run")
    run.add_argument("--launch", type=int, metavar="N", help="count only the Nth launch (of --kernel, if given)")
    run.add_argument(
        "--target", default="sm_90", help="sm_75, sm_80, sm_86, sm_89, sm_90 (default), sm_100, sm_103, sm_120"
    )
    run.add_argument("--json", metavar="FILE", help="write the counts of every launch and config")
    run.add_argument("--html", metavar="FILE", help="write a page with the source, the counts and the worst lanes")
    run.add_argument(
        "--budget", metavar="FILE", help='{"kernel": {"load_sectors": 600}}; status 1 and a sentence if broken'
    )
    run.add_argument("--every", type=int, metavar="N", help="run and count each Nth program only")
    run.add_argument(
        "--seconds", type=float, default=4.0, help="of processor time for a launch, after which it is sampled (4)"
    )
    run.add_argument("--all", action="store_true", help="never sample: run every program, however long it takes")
    run.add_argument(
        "--complete", action="store_true", help="sample the counts, yet run all programs for their outputs"
    )
    run.add_argument(
        "--sanitize", action="store_true", help="also check for uninitialised reads, strided views, undefined lanes"
    )
    run.add_argument("--quiet", action="store_true", help="print no report")
    run.add_argument("--traceback", action="store_true", help="print the traceback of a script that fails")
    run.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as `python -m` does: -m pytest …")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT.py [ARGS]")
    diff = verbs.add_parser("diff", help="compare two files of --json: what grew, on which line")
    diff.add_argument("before")
    diff.add_argument("after")
    diff.add_argument("--strict", action="store_true", help="status 1 if anything grew or changed")
    verify = verbs.add_parser("verify", help="on a machine with a GPU and ncu: our counts beside the hardware's")
    verify.add_argument("--target", help="the GPU's own by default")
    verify.add_argument("--output", default="verify.json", help="where both go; send it to us (verify.json)")
    verify.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as `python -m` does")
    verify.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT.py [ARGS]")
    return parser


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and those of the module that `-m` names."""
    if argv[:1] in (["run"], ["verify"]) and "-m" in argv:
        at = argv.index("-m")
        before = argv[1:at]
        if not any(a.endswith(".py") for a in before) and at + 1 < len(argv):
            return argv[: at + 2], argv[at + 2 :]
    return argv, []


def main(argv: list[str] | None = None) -> int:
    """Run the command, and give its exit status."""
    ours, theirs = _split(list(sys.argv[1:] if argv is None else argv))
    options = _parser().parse_args(ours)
    try:
        return {"run": _run, "diff": _diff, "verify": _verify}[options.verb](options, theirs)
    except errors.LaunchError as error:
        print(f"msda_core.machine: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace, theirs: list[str]) -> int:
    capability = parse_target(options.target)
    limits = budgets.read(options.budget) if options.budget else {}
    command = [options.module, *theirs] if options.module else options.command
    if not command:
        raise errors.LaunchError("Name a script: python -m msda_core.machine run SCRIPT.py [ARGS], or -m MODULE.")
    profiled = session(
        capability, kernel=options.kernel, launch=options.launch, every=options.every,
        seconds=None if options.all else options.seconds, complete=options.complete, sanitize=options.sanitize,
    )  # fmt: skip
    if options.module in ("pytest", "py.test"):
        command[1:1] = ["-p", "msda_core.machine.tool.fixtures"]
    with profiled.everywhere(), pretending(capability, profiled.estimated):
        outcome = script.run(command[0], command[1:], module=bool(options.module))
    notes = [outcome.sentence] if outcome.sentence else []
    if outcome.sentence and (sampled := [p for p in profiled.launches if p.report and p.report.sampled is not None]):
        if not options.complete:
            notes.append(
                f"{sampled[0].kernel}, launch {sampled[0].number}, was sampled before that, and its outputs are not whole: "
                "with --complete or --all, or smaller inputs, they are."
            )
    seen = ", ".join(f"{name} ({times})" for name, times in profiled.seen.items())
    if not profiled.seen:
        notes.append(f"{command[0]} launched no Triton kernel in this process.")
    elif options.kernel and options.kernel not in profiled.seen:
        notes.append(f"{options.kernel} was never launched. Launched: {seen}.")
    elif options.launch is not None and not profiled.launches:
        notes.append(f"There was no launch number {options.launch}. Launched: {seen}.")
    document = data.document(capability, profiled.launches, " ".join(notes))
    if options.json:
        _write(options.json, json.dumps(document, indent=1))
    if options.html:
        _write(options.html, page(document))
    sys.stdout.flush()
    if not options.quiet and document["launches"]:
        print(report(document))
    if outcome.trace and options.traceback:
        print(outcome.trace, file=sys.stderr)
    counted = len({r["launch"] for r in document["launches"] if not r["refused"]})
    for note in notes:
        print(note, file=sys.stderr)
    if outcome.sentence:
        print(f"Counted before that: {counted} launches.", file=sys.stderr)
    broken = budgets.breaches(limits, document["launches"])
    for sentence in broken:
        print(f"over budget: {sentence}", file=sys.stderr)
    missing = (options.kernel or options.launch is not None) and not profiled.launches
    return outcome.status or int(bool(broken)) or int(bool(missing))


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise errors.LaunchError(f"{path} cannot be written: {error.strerror}.") from None


def _diff(options: argparse.Namespace, theirs: list[str]) -> int:
    found = compare.differences(data.load(options.before), data.load(options.after))
    print("\n".join(found) if found else "Nothing changed.")
    return int(bool(found) and options.strict)


def _verify(options: argparse.Namespace, theirs: list[str]) -> int:
    import torch

    from msda_core.machine.tool.verify import verify

    command = ["-m", options.module, *theirs] if options.module else options.command
    if not command:
        raise errors.LaunchError("Name a script: python -m msda_core.machine verify SCRIPT.py [ARGS], or -m MODULE.")
    if not torch.cuda.is_available():
        raise errors.LaunchError("verify compares with a GPU's counters, and there is no CUDA GPU here.")
    target = options.target or "sm_{}{}".format(*torch.cuda.get_device_capability())
    print(verify(command, target, options.output))
    print(f"Written to {options.output}.")
    return 0
