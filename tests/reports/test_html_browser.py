"""The page in a real Chromium, from a file: by pointer, by keyboard, without JavaScript or a network."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropeaudit import reports, shift
from ropeaudit.audits import records
from ropeaudit.reports import Report
from ropeaudit.reports.drift import report as drift_report

pytestmark = pytest.mark.slow
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1280,900",
)  # fmt: skip


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (program and driver):
        assert not os.environ.get("ROPEAUDIT_NEEDS_BROWSER"), "no chromium and chromedriver"
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of a real audit."""
    results = list(
        shift((0, 100, 5000), ("fp32", "bf16"), ("uniform", "hf"), seq_len=16, heads=1, head_dim=8)
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(reports.render("html", drift_report(results, (), {})))
    return path.as_uri()


@pytest.fixture
def page(chromium: Any, place: str) -> Iterator[Any]:
    """The browser with the page; in the end nothing was asked of any network, and nothing complained."""
    for kind in ("browser", "performance"):
        chromium.get_log(kind)  # what other pages said
    scheme(chromium, "light")
    chromium.get(place)
    yield chromium
    quiet(chromium)


def quiet(browser: Any) -> None:
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    requested = [one["request"]["url"] for one in sent if one["documentURL"].startswith("file:")]
    assert [url for url in requested if not url.startswith(("file:///", "data:"))] == []
    assert {url.partition("#")[0].rpartition("/")[2] for url in requested if url.startswith("file:")} <= {
        "report.html",
        "hostile.html",
        "many.html",
    }
    assert requested, "the log saw nothing at all"


def scheme(browser: Any, name: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": name}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def column(browser: Any, name: str) -> list[str]:
    script = """
        const at = [...document.querySelectorAll("#cases th")].findIndex(th =>
            th.textContent === arguments[0]);
        return [...document.querySelectorAll("#cases tbody tr")].map(row => row.cells[at].textContent);"""
    return browser.execute_script(script, name)


def header(browser: Any, name: str) -> Any:
    buttons = browser.find_elements("css selector", "#cases th button")
    return next(button for button in buttons if button.text == name)


def by_tab(browser: Any, requested: Any, most: int = 60) -> None:
    """Press Tab until the element has the focus."""
    from selenium.webdriver import ActionChains, Keys

    for _ in range(most):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        if browser.switch_to.active_element == requested:
            return
    raise AssertionError(f"Tab does not reach {requested.text!r}")


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def until(browser: Any, reference: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 5).until(lambda _: reference())


def test_it_opens_and_shows_all(page: Any) -> None:
    heading = page.find_element("tag name", "h1").text
    assert heading.startswith("FAIL uniform: out of tolerance in bf16")
    assert page.title.startswith("FAIL uniform: out of tolerance")
    assert len(column(page, "offset")) == 12
    assert page.find_element("id", "count").text == "12 of 12 cases"
    [drawing] = page.find_elements("css selector", "figure img")
    assert drawing.accessible_name.startswith("Drift against offset: FAIL uniform: out of tolerance")
    assert drawing.size["width"] > 300
    assert page.execute_script("return arguments[0].complete && arguments[0].naturalWidth > 300", drawing)


def test_sorting_by_pointer_uses_whole_numbers(page: Any) -> None:
    header(page, "drift max").click()
    rising = [float(value) for value in column(page, "drift max")]
    assert rising == sorted(rising)
    assert len(set(rising)) > 6
    marked = page.find_elements("css selector", "th[aria-sort=ascending]")
    assert [one.text.split(" ↑")[0] for one in marked] == ["drift max"]
    header(page, "drift max").click()
    assert [float(value) for value in column(page, "drift max")] == rising[::-1]
    assert len(page.find_elements("css selector", "th[aria-sort=descending]")) == 1
    header(page, "offset").click()
    assert column(page, "offset") == ["0"] * 4 + ["100"] * 4 + ["5,000"] * 4  # not as text
    assert len(page.find_elements("css selector", "th:not([aria-sort=none])[aria-sort]")) == 1


def test_filtering_by_text_and_verdict(page: Any) -> None:
    from selenium.webdriver import Keys

    field = page.find_element("id", "filter")
    by_tab(page, field)
    press(page, "HF 5000", Keys.ENTER)  # Enter must not load the page anew
    until(page, lambda: page.find_element("id", "count").text == "2 of 12 cases")
    assert set(column(page, "implementation")) == {"hf"}
    boxes = page.find_elements("name", "verdict")
    assert [box.get_attribute("value") for box in boxes] == ["broken", "growing", "sound"]
    boxes[0].click()
    boxes[1].click()
    assert column(page, "verdict") == ["≈ sound"]
    field.clear()
    until(page, lambda: column(page, "verdict") == ["≈ sound"] * 9)
    header(page, "offset").click()  # sorting keeps the filter
    assert column(page, "verdict") == ["≈ sound"] * 9
    boxes[2].click()
    assert page.find_element("id", "count").text == "0 of 12 cases"


def test_the_colours_are_those_of_the_system(page: Any) -> None:
    script = "return getComputedStyle(document.body).backgroundColor"
    light = page.execute_script(script)
    scheme(page, "dark")
    assert page.execute_script(script) != light


@pytest.mark.parametrize("clipboard", [True, False])
def test_copying(page: Any, place: str, clipboard: bool) -> None:
    from selenium.webdriver import Keys

    rights = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.execute_cdp_cmd("Browser.grantPermissions", rights)
    if not clipboard:
        page.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    by_tab(page, page.find_element("id", "copy"))
    press(page, Keys.ENTER)
    until(page, lambda: page.find_element("id", "said").text == "Copied.")
    page.get(place)
    copied = page.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0], e => arguments[0]('' + e))"
    )
    assert copied.startswith("```text\nFAIL  uniform   out of tolerance in bf16")
    assert "| uniform | bf16 | 5,000 |" in copied
    whole = page.execute_script("return document.getElementById('markdown').textContent")
    assert copied.strip() == whole.strip()


def test_where_nothing_can_copy_the_text_is_selected(page: Any) -> None:
    page.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.execute_script("document.execCommand = () => false")
    page.find_element("id", "copy").click()
    assert "Ctrl+C" in page.find_element("id", "said").text
    assert page.execute_script("return String(window.getSelection())").startswith("```text\nFAIL  uniform")


def test_without_javascript(page: Any, place: str) -> None:
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.get(place)
        assert page.find_element("tag name", "h1").text.startswith("FAIL uniform: out of tolerance")
        assert len(page.find_elements("css selector", "#cases tbody tr")) == 12
        assert page.find_elements("css selector", "figure img")[0].is_displayed()
        assert not page.find_element("id", "controls").is_displayed()
        assert not page.find_element("id", "copy").is_displayed()
        assert "need JavaScript" in page.find_element("tag name", "noscript").text
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_narrow_window_scrolls_the_table_and_not_the_page(page: Any) -> None:
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        widths = "const all = document.documentElement; return [all.scrollWidth, all.clientWidth]"
        whole, seen = page.execute_script(widths)
        assert whole <= seen
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_ten_thousand_rows_stay_usable(chromium: Any, tmp_path: Path) -> None:
    (one,) = shift(100, "bf16", "hf", seq_len=9, heads=1, head_dim=8)
    rows = [
        one.as_dict() | {"model": f"m{i // 100}", "offset": i, "drift_rms": 1 / (1 + i)}
        for i in range(10_000)
    ]
    screen = ["implementation", "model", "offset", "drift_rms", "floor_rms", "verdict"]
    path = tmp_path / "many.html"
    path.write_text(reports.render("html", Report(rows, list(records.COLUMNS), screen, headline="Many.")))
    chromium.get(path.as_uri())
    until(chromium, lambda: len(column(chromium, "offset")) == 200)  # a page of them
    assert chromium.find_element("id", "count").text == "10,000 of 10,000 cases, 1 to 200 shown"
    took = chromium.execute_script(
        "const begin = performance.now(); document.querySelectorAll('#cases th button')[3].click();"
        "document.body.offsetHeight; return performance.now() - begin"
    )
    assert took < 2000
    assert column(chromium, "offset")[:2] == ["9,999", "9,998"]
    chromium.find_element("id", "next").click()
    assert column(chromium, "offset")[0] == "9,799"
    chromium.find_element("id", "filter").send_keys("m7 ")
    until(chromium, lambda: "1,100 of 10,000" in chromium.find_element("id", "count").text)
    quiet(chromium)
