"""The page about a data set in a browser: thousands of images cost no more than those in sight."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.workbench.looking.data_page import ClassRow, Crop, CropGroup, DataPage, Pair
from support.browser import Browser, find_chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium"),
]

IMAGES, SIZE = 6000, (240, 180)
NAMES = "[...document.querySelectorAll('#all figcaption b')].map((e) => e.textContent)"
CARDS = "document.querySelectorAll('#all figure').length"
LOADED = "performance.getEntriesByType('resource').length"
CHOOSE = (
    "(() => {{ const e = document.getElementById('{id}'); e.{what}; "
    "e.dispatchEvent(new Event('input')); }})()"
)


def image(number: int) -> dict:
    return {
        "name": f"{number:05d} <i>.jpg",
        "picture": number,
        "size": SIZE,
        "void": number % 100 / 2,
        "segments": number % 7,
        "things": number % 5,
        "classes": [0, 1] if number % 1000 == 17 else [0],
        "flags": ["tiny", "void"] if number == 42 else ["tiny"] if number % 3000 == 4 else [],
        "truth": True,
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    pictures = folder / "page_files/0"
    pictures.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8)
    Image.fromarray(noise).save(folder / "noise.jpg")
    for number in range(IMAGES):
        for kind in ("", "o"):
            os.link(folder / "noise.jpg", pictures / f"{number:06d}{kind}.jpg")
    crop = Crop("page_files/0/000000.jpg", "a.jpg", "5 pixels")
    group = CropGroup("Tiny segments", "note", 3, [crop] * 24)
    content = DataPage(
        dataset="city_train",
        description="6000 images",
        cards={"Images": "6,000"},
        classes=[
            ClassRow("road", "stuff", "rgb(1,2,3)", IMAGES, IMAGES, 90.0, (10.0, 100.0, 1000.0)),
            ClassRow("car", "thing", "rgb(9,2,3)", 6, 6, 10.0, (1.0, 1.0, 1000.0)),
            ClassRow("ship", "thing", "rgb(9,2,3)", 0, 0, 0.0, None),
        ],
        images=list(map(image, range(IMAGES))),
        folder="page_files/0",
        findings="page_findings.csv",
        sizes=[("240 x 180", IMAGES, 100.0)],
        empty=CropGroup("Images without things", "note", 1, [crop]),
        rare=[group._replace(title="car")],
        absent=["ship"],
        suspicious=[group],
        compared_with="city_val",
        leaks=[Pair(crop, crop, "the same file")],
        num_leaks=1,
        duplicates=[],
        num_duplicates=0,
        equal_note="note",
        samples=[("a.jpg", [crop, crop])],
        faults=["b.jpg: is broken"],
    )
    (folder / "page.html").write_text(content.render(), encoding="utf-8")
    return folder / "page.html"


def test_thousands_of_images(page, tmp_path):
    start = time.perf_counter()
    with Browser(page, tmp_path / "profile") as browser:
        assert time.perf_counter() - start < 20  # a second or two; a hang is minutes
        assert browser.evaluate("document.getElementById('count').textContent") == "6000 of 6000"
        browser.evaluate("document.getElementById('images').scrollIntoView({behavior: 'instant'})")
        wait(browser, f"{CARDS} > 0")
        assert browser.evaluate(CARDS) <= 144
        assert browser.evaluate(LOADED) < 200
        assert browser.evaluate(f"{NAMES}[0]") == "00000 <i>.jpg"

        # Scrolling adds some, and loads them.
        for _ in range(3):
            before = browser.evaluate(CARDS)
            browser.evaluate("scrollTo({top: 1e9, behavior: 'instant'})")
            wait(browser, f"{CARDS} > {before}")
        assert browser.evaluate(CARDS) < 600
        last = f"document.querySelectorAll('#all img')[{browser.evaluate(CARDS) - 1}]"
        browser.evaluate(f"{last}.scrollIntoView({{behavior: 'instant'}})")
        wait(browser, f"{last}.complete && {last}.naturalWidth === 240")

        # Filters and orders.
        browser.evaluate(CHOOSE.format(id="filter", what="value = '1'"))
        found = [f"{number:05d} <i>.jpg" for number in range(17, IMAGES, 1000)]
        assert browser.evaluate(NAMES) == found
        browser.evaluate(CHOOSE.format(id="order", what="value = 'void'"))
        assert browser.evaluate(NAMES) == found  # all have the same, and keep their order
        browser.evaluate(CHOOSE.format(id="filter", what="value = 'suspicious'"))
        browser.evaluate(CHOOSE.format(id="order", what="value = 'flags'"))
        assert browser.evaluate(NAMES)[0] == "00042 <i>.jpg" and browser.evaluate(CARDS) == 3
        flag = "document.querySelector('#all .flag').textContent"
        assert browser.evaluate(flag) == "suspicious: tiny, void"
        browser.evaluate(CHOOSE.format(id="filter", what="value = 'empty'"))
        assert browser.evaluate("document.getElementById('count').textContent") == "1200 of 6000"
        browser.evaluate(CHOOSE.format(id="filter", what="value = 'all'"))
        browser.evaluate(CHOOSE.format(id="name", what="value = '0123'"))
        assert len(browser.evaluate(NAMES)) == 11  # 00123, 01230 ... 01239

        # The annotations of one image, and of all.
        source = "document.querySelector('#all img').getAttribute('src')"
        assert browser.evaluate(source) == "page_files/0/000123o.jpg"
        browser.click("document.querySelector('#all img')")
        assert browser.evaluate(source) == "page_files/0/000123.jpg"
        browser.evaluate(CHOOSE.format(id="overlay", what="checked = false"))
        sources = "[...document.querySelectorAll('#all img')].map((e) => e.getAttribute('src'))"
        assert not any(source.endswith("o.jpg") for source in browser.evaluate(sources))

        # The table sorts by its numbers; the bars of areas are to scale.
        column = "[...document.querySelectorAll('#classes thead th')][3].firstChild"
        browser.click(column)
        rows = "[...document.querySelectorAll('#classes tbody th')].map((e) => e.textContent)"
        assert browser.evaluate(rows) == ["road", "car", "ship"]
        browser.click(column)
        assert browser.evaluate(rows) == ["ship", "car", "road"]
        share = "((i) => i.offsetWidth / i.parentElement.offsetWidth)"
        bars = f"[...document.querySelectorAll('.axis i')].map({share})"
        assert browser.evaluate(bars) == pytest.approx([1, 2 / 3], abs=0.01)
        assert not browser.evaluate(
            "[...document.images].filter((i) => i.complete && !i.naturalWidth).length"
        )


def wait(browser: Browser, condition: str) -> None:
    end = time.monotonic() + 10
    while not browser.evaluate(condition):
        assert time.monotonic() < end, condition
        time.sleep(0.05)
