"""The report in a real Chromium: no console error, no request, tables sort, marks say what they are, keys work.

The browser is the system's (apt's `chromium`); playwright only drives it. Where HARNESS_CI=1 it must be there.
"""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.report import build
from tests.analysis.studies import linear_gap, runs_table, write_study

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)

if os.environ.get("HARNESS_CI") != "1":
    pytest.importorskip("playwright")
    if not CHROMIUM:
        pytest.skip("no chromium on this machine (apt-get install chromium)", allow_module_level=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    runs = runs_table(linear_gap(6.0, 10_000, noise=0.5), seeds=2)
    runs.loc[0, ["state", "reason"]] = ["failed", "out_of_memory"]
    (folder / "vit-1000-s1").mkdir()
    build(write_study(folder / "tables", runs, smoke=True), folder / "report")
    return folder / "report" / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "no chromium: .ci/run installs it"
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def open_page(browser: Any, report: Path, width: int = 1280, **options: Any) -> tuple[Any, list[str], list[str]]:
    """A page, and the lists that console errors and requests are written to."""
    errors: list[str] = []
    requests: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    page.set_default_timeout(10_000)
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report.as_uri())
    return page, errors, requests


def test_it_loads_without_errors_and_asks_for_nothing_else(browser: Any, report: Path) -> None:
    page, errors, requests = open_page(browser, report)
    assert errors == []
    assert requests == [report.as_uri()]
    assert page.title() == "A study"
    page.close()


def test_the_run_table_sorts_by_number_and_links_to_folders(browser: Any, report: Path) -> None:
    page, _, _ = open_page(browser, report)
    table = page.locator("table.sortable", has=page.get_by_role("button", name="Val top-1 [%]"))
    button = table.get_by_role("button", name="Images", exact=True)
    sizes = "rows => rows.map(row => row.children[3].dataset.value)"
    button.focus()
    page.keyboard.press("Enter")  # by keyboard, ascending
    found = [float(value) for value in table.locator("tbody tr").evaluate_all(sizes)]
    assert found == sorted(found)
    assert len(set(found)) == 3
    button.click()
    assert [float(value) for value in table.locator("tbody tr").evaluate_all(sizes)] == sorted(found, reverse=True)
    assert table.locator("th[aria-sort=descending]").inner_text().startswith("Images")
    link = table.get_by_role("link", name="vit-1000-s1")
    assert link.evaluate("a => a.href") == (report.parent.parent / "vit-1000-s1").as_uri() + "/"
    failed = page.locator("table.sortable").filter(has_text="out_of_memory")
    assert failed.get_by_text("vit-1000-s0").count() == 1
    assert page.get_by_role("link", name="vit-1000-s0").count() == 0  # no folder, so no link
    page.close()


def test_a_mark_says_run_and_values_to_pointer_and_keyboard(browser: Any, report: Path) -> None:
    page, _, _ = open_page(browser, report)
    figure = page.locator("figure svg").first
    tip = page.locator("#tip")
    assert tip.is_hidden()
    figure.locator(".mark").first.hover()
    assert tip.is_visible()
    said = tip.inner_text()
    assert said.startswith("vit-1000-s1: ")
    assert "% at 1,000 images, seed 1" in said
    page.mouse.move(2, 2)
    assert tip.is_hidden()
    figure.focus()
    page.keyboard.press("ArrowRight")
    assert tip.inner_text() == said
    page.keyboard.press("ArrowRight")
    assert tip.inner_text() not in ("", said)
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.close()


def test_no_label_or_line_lies_between_the_pointer_and_a_mark(browser: Any, report: Path) -> None:
    page, _, _ = open_page(browser, report)
    under = """uses => uses.map(mark => {
        mark.scrollIntoView({block: 'center'});
        const box = mark.getBoundingClientRect();
        return document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2).closest('.mark, svg'); })
        .filter(found => found.tagName === 'svg').length"""
    marks = page.locator("figure svg use.mark")
    assert marks.count() > 40
    assert marks.evaluate_all(under) == 0
    page.close()


def test_a_tap_on_or_near_a_mark_says_what_it_is(browser: Any, report: Path) -> None:
    page, _, _ = open_page(browser, report, 390, has_touch=True)
    tip, mark = page.locator("#tip"), page.locator("figure svg").first.locator(".mark").first
    mark.tap()
    assert tip.inner_text().startswith("vit-1000-s1: ")
    page.locator("h1").tap()
    assert tip.is_hidden()
    box = mark.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] - 6)
    assert tip.inner_text().startswith("vit-1000-s")
    page.close()


def test_a_tap_near_a_line_says_which_and_a_plot_that_scrolls_says_so(browser: Any, report: Path) -> None:
    page, _, _ = open_page(browser, report, 390, has_touch=True)
    figure = page.locator("figure").filter(has=page.get_by_role("heading", name="Transfer to digits, 5-shot"))
    hint = "figure => getComputedStyle(figure.querySelector('.plot'), '::before').display"
    assert figure.evaluate(hint) == "block"
    assert figure.evaluate(hint.replace("display", "content")) == '"↔ scroll sideways for the whole figure"'
    line = figure.locator("g.mark").filter(has_text="raw pixels")
    line.scroll_into_view_if_needed()
    box = line.bounding_box()
    page.touchscreen.tap(box["x"] + 60, box["y"] + 5)
    assert page.locator("#tip").inner_text() == "raw pixels: 61.0 %"
    words = page.locator("#tip").bounding_box()
    assert words["y"] < box["y"] + 5 < words["y"] + words["height"] + 20  # beside the finger
    page.close()
    page, _, _ = open_page(browser, report, 1280)
    assert page.locator("figure").first.evaluate(hint) == "none"
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_width_and_text_is_legible(browser: Any, report: Path, width: int, scheme: str) -> None:
    page, errors, _ = open_page(browser, report, width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # wide tables scroll inside their frame
    smallest = "[...document.querySelectorAll('figure svg text')].map(text => text.getBoundingClientRect().height)"
    assert min(page.evaluate(smallest)) > 9  # the line's height, of the small print of an overlay
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, colour[4:-1].split(","))) < 200) == (scheme == "dark")
    fills = "[...document.querySelectorAll('figure svg text')].map(text => getComputedStyle(text).fill)"
    inks = ["rgb(58, 58, 58)", "rgb(207, 211, 215)"]  # of a figure's text on light and on dark ground
    faint = "rgb(125, 125, 125)"  # of an overlay's text
    assert set(page.evaluate(fills)) == {inks[scheme == "dark"], faint}
    second = "document.querySelectorAll('figure:nth-of-type(2) svg use.mark')"
    marks = f"[...{second}].map(mark => getComputedStyle(mark).stroke)"
    assert set(page.evaluate(marks)) == {inks[scheme == "dark"]}  # the gap's marks, drawn in ink
    assert errors == []
    if folder := os.environ.get("HARNESS_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"report-{width}-{scheme}.png", full_page=True)
    page.close()


@pytest.mark.slow
def test_a_thousand_runs_are_built_in_30_s_and_open_in_2_s(browser: Any, tmp_path: Path) -> None:
    sizes = (1_000, 3_000, 10_000, 30_000, 100_000)
    runs = runs_table(linear_gap(6.0, 10_000, noise=1.0), sizes=sizes, seeds=100)
    folder = write_study(tmp_path / "tables", runs)
    start = time.process_time()
    build(folder, tmp_path / "report")
    built = time.process_time() - start
    page, errors, _ = open_page(browser, tmp_path / "report" / "index.html")
    timing = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    print(f"1,000 runs: built in {built:.1f} CPU-seconds, opens in {timing:.0f} ms")
    assert built < 30
    assert timing < 2000
    assert errors == []
    assert page.locator("table.sortable tbody tr").count() > 1000
    page.close()
