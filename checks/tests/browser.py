"""A notebook in a real browser: marimo's editor on a copy of a lab, driven in headless Chromium."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from checks.answers import notebook
from checks.answers.carry import solution_module
from checks.catalogue import LABS
from checks.core.exercise import lab_exercises
from checks.kernel.doctor import find_chromium

# marimo does not save notebooks under the system's temporary folder, so copies live here.
SCRATCH = notebook.ROOT / ".scratch"

CHROMIUM_FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --force-color-profile=srgb"
).split()


@contextlib.contextmanager
def copied_labs(texts: dict[str, str]) -> Iterator[Path]:
    """A folder of notebooks, lab → text, with the project's marimo settings beside it; removed afterwards."""
    root = SCRATCH / uuid.uuid4().hex[:8]
    labs = root / "labs"
    labs.mkdir(parents=True)
    shutil.copy(notebook.ROOT / "pyproject.toml", root)
    for lab, text in texts.items():
        (labs / f"{LABS[lab].notebook}.py").write_text(text, encoding="utf-8")
    try:
        yield labs
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def serving(path: Path) -> Iterator[str]:
    """marimo's editor on one notebook; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "marimo", "edit", str(path), "--headless", "--no-token"]
    command += ["--port", str(port), "--skip-update-check"]
    environment = {**os.environ, "MSDA_LABS": str(path.parent)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a learner's second start finds compiled modules
    server = subprocess.Popen(
        command, cwd=path.parent.parent, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            if server.poll() is not None:
                raise RuntimeError(f"marimo edit ended with status {server.returncode} before it served {path.name}.")
            try:
                urllib.request.urlopen(address, timeout=1).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()


def cpu_seconds(address: str) -> float:
    """What a served notebook has cost so far, its kernel included: unlike wall time, the same on a busy machine."""
    port = address.rsplit(":", 1)[1]
    (server,) = [one for one in psutil.Process().children() if port in one.cmdline()]
    return sum(t.user + t.system for t in (one.cpu_times() for one in (server, *server.children(recursive=True))))


@contextlib.contextmanager
def opened(address: str, *, width: int = 1200, height: int = 1000, dark: bool = False):
    """A page of headless Chromium on an address."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), headless=True, args=CHROMIUM_FLAGS)
        try:
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
            )
            page.goto(address)
            yield page
        finally:
            browser.close()


def verdict(page, name: str):
    """The locator of an exercise's verdict panel."""
    return page.locator(f'[data-check="{name}"]')


def wait_shown(page, selector: str, timeout: float = 30.0) -> None:
    """Wait until a page shows an element. Whether it is visible is asked once it is there: that makes the page lay itself out."""
    there = "selector => !!document.querySelector(selector)"
    wait_until(lambda: page.evaluate(there, selector) and page.locator(selector).first.is_visible(), timeout)


def wait_state(page, name: str, state: str, timeout: float = 30.0) -> None:
    """Wait until a verdict shows a state."""
    try:
        wait_shown(page, f'[data-check="{name}"][data-state="{state}"]', timeout)
    except AssertionError:
        shown = [one.inner_text() for one in verdict(page, name).all()]
        said = errors(page)
        raise AssertionError(f"no {state} for {name} in {timeout:g} s. It shows {shown}, with errors {said}.") from None


def wait_closing(page, lab: str, passed: int, timeout: float = 30.0) -> None:
    """Wait until a lab's last cell counts so many exercises."""
    wait_shown(page, f"[data-closing='{lab}'][data-passed='{passed}']", timeout)


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds, a saved file for instance."""
    late = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < late, f"it did not come true in {seconds:g} s"
        time.sleep(0.2)


def cell_of(page, function: str) -> str:
    """The id of the cell that defines a function; it stays when the learner renames or breaks the function."""
    return page.locator(f'[data-cell-name="*{function}"]').first.get_attribute("data-cell-id")


def wait_idle(page, timeout: float = 120.0) -> None:
    """Wait until no cell runs or is about to."""
    idle = "() => !document.querySelector('[data-status=running], [data-status=queued]')"
    wait_until(lambda: page.evaluate(idle), timeout)


PASTE = """(editor, text) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", text);
    editor.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true}));
}"""


def type_answer(page, cell: str, source: str) -> None:
    """Replace a cell's text and run it, as a learner would who pastes it: typed in, a kernel takes the editor two seconds."""
    wait_idle(page)  # marimo's editor can lose what is typed while figures above it are still being drawn
    editor = page.locator(f'[data-cell-id="{cell}"] .cm-content').first
    editor.focus()  # a click could miss: verdicts above that are still growing push the cell away
    page.keyboard.press("Control+a")
    editor.evaluate(PASTE, source)
    page.keyboard.press("Control+Enter")


def solve(page, lab: str) -> None:
    """What is still to do of a lab, as a learner goes: each answer into its cell, each verdict awaited, then a look at the page."""
    counted = 0
    for exercise in lab_exercises(lab):
        counted += not exercise.stretch
        if page.locator(f'[data-check="{exercise.name}"][data-state="pass"]').count():
            continue
        wait_state(page, exercise.name, "todo", timeout=60)
        source = notebook.answer_source(exercise.function, solution_module(lab))
        type_answer(page, cell_of(page, exercise.function), source)
        wait_state(page, exercise.name, "pass", timeout=300)
        wait_closing(page, lab, counted, timeout=120)
    wait_idle(page)
    assert not errors(page)
    assert page.evaluate("() => [...document.images].filter(i => !i.naturalWidth).length") == 0
    assert page.locator("img[alt]").count() >= 2
    page.set_viewport_size({"width": 683, "height": 384})  # a laptop's window at 200 % zoom
    page.wait_for_timeout(300)
    assert page.evaluate(CUT_OFF) == [], page.evaluate(CUT_OFF)


#: What of ours reaches past the right edge of the window, in words. A figure may be wider than its box if the box scrolls.
CUT_OFF = """() => [...document.querySelectorAll('img[alt], [data-check], [data-closing]')]
    .filter(e => (e.closest('[style*="overflow-x"]') || e).getBoundingClientRect().right > window.innerWidth)
    .map(e => e.getAttribute('alt') || e.getAttribute('data-check') || 'closing')"""


def errors(page) -> list[str]:
    """What cells in error say."""
    return page.locator(".marimo-error, [data-error]").all_inner_texts()


def screenshot(page, path: Path) -> None:
    """The whole notebook as one picture: the window grows to the height of its content."""
    height = page.evaluate("() => Math.max(...[...document.querySelectorAll('*')].map(e => e.scrollHeight))")
    page.set_viewport_size({"width": page.viewport_size["width"], "height": min(int(height) + 100, 15000)})
    page.wait_for_timeout(500)
    page.screenshot(path=str(path))
