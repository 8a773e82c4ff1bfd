"""python -m checks doctor: is this installation sound?"""

import importlib.metadata
import importlib.util
import platform
import shutil

import torch

from msda_core import device

__all__ = ["examine", "find_chromium"]


def find_chromium() -> str | None:
    """The Chromium that the browser tests drive, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)


def examine() -> int:
    """Print versions and run one known computation of every kind that the labs need. Returns an exit status."""
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("torch", "triton", "triton-windows", "marimo", "numpy", "matplotlib"):
        try:
            print(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            if package != "triton-windows":
                print(f"{package} is not installed")
    print(f"kernels run on: {device.describe()}")
    trouble = []
    for title, probe in (
        ("the operator in loops and on grid_sample agree", _operator),
        ("a Triton kernel adds", _kernel),
    ):
        try:
            note = probe()
            print(f"  ok       {title}" if not note else f"  not run  {title}: {note}")
        except Exception as error:  # a doctor reports, whatever it finds
            trouble.append(title)
            print(f"  broken   {title}: {type(error).__name__}: {error}")
    if importlib.util.find_spec("marimo") is None:
        trouble.append("marimo")
        print("  broken   the notebooks need marimo: `pip install marimo`")
    chromium = find_chromium()
    print(
        f"  ok       browser tests drive {chromium}"
        if chromium
        else "  not run  browser tests: no Chromium found (only they need it)"
    )
    print("All is well." if not trouble else f"{len(trouble)} broken: {'; '.join(trouble)}.")
    return int(bool(trouble))


def _operator() -> str | None:
    from msda_core import reference

    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.rand(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    call = (draw(2, 11, 2, 3), [(2, 4), (3, 1)], None, draw(2, 5, 2, 2, 3, 2), draw(2, 5, 2, 2, 3))
    torch.testing.assert_close(reference.msda(*call), reference.msda_loops(*call))
    return None


def _kernel() -> str | None:
    if device.NO_TRITON:
        return device.NO_TRITON
    from checks.kernel.probe import add

    x = torch.arange(100.0, device=device.ACTIVE)
    torch.testing.assert_close(add(x, 2 * x), 3 * x)
    return None
