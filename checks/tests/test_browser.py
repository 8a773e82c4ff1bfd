"""The learner's journey, in marimo's editor in a real Chromium."""

import time

import pytest

from checks.answers.carry import solution_module
from checks.answers.notebook import answer_source, notebook_path
from checks.tests import browser
from checks.tests.conftest import IN_A_BROWSER, WRITTEN, blank_text

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]  # on a busy machine, starting Chromium alone takes long

# Seconds from the command to the first verdict, once everything is installed. Counted in the processor time of marimo and
# its kernel, which one after the other do all there is to wait for: tests run side by side, and wall time would count
# the neighbours.
FIRST_VERDICT = 10.0


def image_of(page, alt: str) -> str:
    """The data of the figure whose description contains a text."""
    return page.locator(f'img[alt*="{alt}"]').first.get_attribute("src")


def test_the_first_lab_from_the_command_to_saved_work():
    text = blank_text("01")
    with browser.copied_labs({"01": text}) as labs:
        path = notebook_path("01", labs)
        with browser.opened("about:blank") as page:
            started = time.perf_counter()
            with browser.serving(path) as address:
                page.goto(address)
                browser.wait_state(page, "01.to_pixels", "todo")
                first, waited = browser.cpu_seconds(address), time.perf_counter() - started
                browser.wait_closing(page, "01", 0)
                assert not browser.errors(page)

                # A wrong answer: the mistake is named.
                cell = browser.cell_of(page, "to_pixels")
                browser.type_answer(page, cell, "def to_pixels(location, size):\n    return location * size\n")
                browser.wait_state(page, "01.to_pixels", "fail")
                panel = browser.verdict(page, "01.to_pixels")
                assert "Your answer is what you get without the half pixel." in panel.inner_text()
                assert "without the half pixel" in panel.get_attribute("aria-label")

                # One that never ends: the notebook goes on.
                browser.type_answer(page, cell, "def to_pixels(location, size):\n    while True:\n        pass\n")
                browser.wait_state(page, "01.to_pixels", "crash")
                assert "Stopped after 3 s at line 2 of to_pixels" in panel.inner_text()

                # A syntax error, and a name of ours redefined: a sentence, and the rest of the lab goes on.
                for broken in ("def to_pixels(location, size:\n", "torch = None\ndef to_pixels(location, size): ...\n"):
                    browser.type_answer(page, cell, broken)
                    panel.get_by_text("There is no to_pixels in this notebook.").wait_for()
                    assert browser.verdict(page, "01.corner_weights").get_attribute("data-state") == "todo"

                # The right one; x and i are the learner's to use.
                answer = answer_source("to_pixels", solution_module("01"))
                browser.type_answer(page, cell, answer)
                edited = time.perf_counter()
                browser.wait_state(page, "01.to_pixels", "pass")
                verdict_after = time.perf_counter() - edited
                browser.wait_closing(page, "01", 1)

                # A slider moves its figure.
                before = image_of(page, "over a patch of 6 by 6 pixels")
                slider = page.locator("marimo-slider", has_text="x").get_by_role("slider").first
                slider.scroll_into_view_if_needed()
                slider.focus()
                for _ in range(6):
                    page.keyboard.press("ArrowRight")
                page.wait_for_function(
                    "before => [...document.querySelectorAll('img')].every(i => i.src !== before)", arg=before
                )
                assert image_of(page, "over a patch of 6 by 6 pixels") != before

                # Saved, reloaded: the work is still there, and nothing else in the file has changed.
                page.keyboard.press("Control+s")
                expected = text.replace(
                    text[text.index("def to_pixels") : text.index("@app.cell", text.index("def to_pixels"))],
                    answer.rstrip("\n") + "\n\n\n",
                )
                browser.wait_until(lambda: path.read_text(encoding="utf-8") == expected)
                page.reload()
                browser.wait_state(page, "01.to_pixels", "pass")
                browser.verdict(page, "01.to_pixels").scroll_into_view_if_needed()
                page.locator(f'[data-cell-id="{cell}"] .cm-line', has_text="return location * size - 0.5").wait_for()

                # And on to the end.
                browser.solve(page, "01")
    print(
        f"first verdict {waited:.1f} s after the command ({first:.1f} s of work), {verdict_after:.2f} s after an edit"
    )
    assert first < FIRST_VERDICT, f"the first verdict took {first:.1f} s"


#: Lab 01 is solved above, lab 02 in `test_carry`, lab 04 in `test_kernel_notebooks`.
@pytest.mark.parametrize("name", [lab for lab in WRITTEN if lab not in ("01", "02", "04")])
def test_a_lab_is_solved_cell_by_cell(name, monkeypatch):
    """From blank to done as a learner goes: each answer typed into its cell, each verdict awaited, every figure drawn."""
    if name not in IN_A_BROWSER:
        pytest.skip("not run: MSDA_ALL=1 solves all labs in the browser")
    monkeypatch.setenv("MSDA_PATIENCE", "5")
    texts = {other: blank_text(other) for other in WRITTEN}
    with browser.copied_labs(texts) as labs, browser.serving(notebook_path(name, labs)) as address:
        with browser.opened(address) as page:
            browser.wait_closing(page, name, 0, timeout=180)
            browser.solve(page, name)
