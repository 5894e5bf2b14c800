"""The page in a real browser: what a person does, and what is shown then."""

import base64
import json
import time

import pytest
from handmade import COLUMNS, png

from chromium import NEEDS_CHROMIUM, Chromium

DROP = """(() => {{
  const data = new DataTransfer();
  for (const [name, kind, content] of {files}) {{
    const bytes = Uint8Array.from(atob(content), (sign) => sign.charCodeAt(0));
    data.items.add(new File([bytes], name, {{type: kind}}));
  }}
  const event = {{dataTransfer: data, bubbles: true, cancelable: true}};
  document.querySelector("#drop").dispatchEvent(new DragEvent("drop", event));
}})()"""
# Addresses of everything that the page has loaded.
LOADED = "performance.getEntriesByType('resource').map((each) => each.name)"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser():
    with Chromium(1280, 900) as found:
        yield found


def wait(browser, condition, seconds=30):
    end = time.monotonic() + seconds
    while not browser.run(f"Boolean({condition})"):
        assert time.monotonic() < end, browser.text("body")
        time.sleep(0.05)


def drop(browser, *files):
    given = [(name, kind, base64.b64encode(data).decode()) for name, kind, data in files]
    browser.run(DROP.format(files=json.dumps(given)))


def opened(browser, url, name):
    browser.open("about:blank")
    browser.open(f"{url}/#{name}")
    wait(browser, f"document.querySelector('#name').textContent === '{name}'")


@NEEDS_CHROMIUM
def test_dropped_images_are_answered_and_the_strange_one_is_shown(browser, running):
    opened(browser, running, "colours")
    images = [("grey.png", (128, 128, 128)), ("red.png", (255, 0, 0))]
    drop(browser, *((name, "image/png", png(colour)) for name, colour in images))
    wait(browser, "document.querySelectorAll('.result').length === 2")
    known, strange = (browser.text(f".result:nth-child({n})") for n in (1, 2))
    assert "answered" in known or "abstained" in known
    assert "red" in strange
    assert "unknown" in strange
    assert "stranger than 99" in strange
    assert "all 3 labels" not in strange  # three are listed
    assert "confidence" in strange
    wait(browser, "document.querySelectorAll('#unknown img').length >= 1")
    assert "f0" in browser.run("document.querySelector('.result:nth-child(2) details').textContent")
    assert {address.split("/")[2] for address in browser.run(LOADED)} == {running.split("/")[2]}
    assert not browser.errors


@NEEDS_CHROMIUM
def test_a_row_is_typed_and_sent_by_keyboard(browser, running):
    opened(browser, running, "flowers")
    wait(browser, f"document.querySelectorAll('#row input').length === {len(COLUMNS)}")
    browser.run("document.querySelector('#row input:last-of-type').focus()")
    assert browser.run("document.activeElement.closest('label').textContent") == COLUMNS[0]
    browser.key("Tab", times=len(COLUMNS))
    assert browser.run("document.activeElement.textContent") == "Predict"
    browser.key(" ")
    wait(browser, "document.querySelectorAll('.result').length === 1")
    assert "answered" in browser.text(".result")
    assert "like the known inputs" in browser.text(".result")


@NEEDS_CHROMIUM
def test_a_table_is_listed_and_a_bad_one_is_explained(browser, running):
    opened(browser, running, "flowers")
    rows = "".join(f"{n},2,3\n" for n in range(20))
    drop(browser, ("rows.csv", "text/csv", f"{','.join(COLUMNS)}\n{rows}9,x,9\n".encode()))
    wait(browser, "document.querySelectorAll('#results tbody tr').length === 21")
    assert "1 not read" in browser.text(".summary")
    drop(browser, ("rows.csv", "text/csv", b"a;b\n1;2\n"))
    wait(browser, "!document.querySelector('#problem').hidden")
    assert "separate cells by commas" in browser.text("#problem")


@NEEDS_CHROMIUM
def test_an_alarm_is_shown_and_acknowledged_by_a_button(browser, running):
    opened(browser, running, "flowers")
    assert not browser.run("document.querySelector('#acknowledge').offsetParent")
    rows = "".join("99,99,99\n" for _ in range(200))
    drop(browser, ("rows.csv", "text/csv", f"{','.join(COLUMNS)}\n{rows}".encode()))
    wait(browser, "document.querySelector('.summary')?.textContent.startsWith('200 inputs')")
    wait(browser, "document.querySelector('#status').textContent === 'the stream has changed'")
    browser.run("document.querySelector('#acknowledge').click()")
    wait(browser, "document.querySelector('#status').textContent === 'no change seen'")
    assert "started over" in browser.text("#verdict")
    assert not browser.errors


@NEEDS_CHROMIUM
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_its_window_in_both_schemes(browser, running, width, tmp_path):
    opened(browser, running, "flowers")
    wait(browser, "document.querySelector('#status').textContent !== 'connecting'")
    browser.resize(width, 900)
    papers = []
    for dark in (False, True):
        browser.dark(dark)
        papers.append(browser.run("getComputedStyle(document.body).backgroundColor"))
        assert browser.run(OVERFLOW) == 0
        browser.screenshot(tmp_path / f"{width}-{dark}.png")
    assert papers[0] != papers[1]
    browser.resize(1280, 900)
    browser.dark(False)
