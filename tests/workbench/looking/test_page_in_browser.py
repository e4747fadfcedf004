"""The page in a browser: sorting by mouse and keyboard, links."""

import pytest

from ocr_panoptic.workbench.looking.figures import ImageFigures, Picture
from ocr_panoptic.workbench.looking.report import RankedImage
from support.browser import Browser, find_chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium"),
]

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
# Name: PQ, masks, confusions, false positives, misses.
IMAGES = {
    "b.jpg": (9.0, 11.0, 40.0, 30.0, 10.0),
    "c.jpg": (80.0, 20.0, 0.0, 0.0, 0.0),
    "a.jpg": (100.0, 0.0, 0.0, 0.0, 0.0),
}
KINDS = ("masks", "confusions", "false positives", "misses")
NAMES = "[...document.querySelectorAll('#ranking tbody th')].map((e) => e.textContent)"
HEADINGS = "[...document.querySelectorAll('#ranking thead th')]"


@pytest.fixture
def page(tmp_path, render):
    pictures = {name: ImageFigures(name, [Picture("Input", "c", PIXEL)], [], []) for name in IMAGES}
    classes = {"PQ-sky": 95.0, "PQ-ball": 7.0, "PQ-sand": None, "FN-sand": 1}
    classes |= {f"isthing-{name}": 0 for name in ("sky", "ball", "sand")}
    ranking = [
        RankedImage(pictures[name], score, dict(zip(KINDS, losses)))
        for name, (score, *losses) in IMAGES.items()
    ]
    html = render(
        results={"panoptic_seg": {"PQ": 50.0, **classes}},
        images=[pictures["b.jpg"]],
        ranking=ranking,
    )
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    return tmp_path / "index.html"


def test_the_page_in_a_browser(page, tmp_path):
    with Browser(page, tmp_path / "profile") as browser:
        by = {
            browser.evaluate(f"{HEADINGS}[{i}].textContent"): f"{HEADINGS}[{i}].firstChild"
            for i in range(len(KINDS) + 2)
        }
        assert list(by)[:4] == ["Image", "PQ", "Masks", "Confusions"]
        assert browser.evaluate(NAMES) == ["b.jpg", "c.jpg", "a.jpg"]

        # By mouse: numbers are sorted as numbers, the largest first, then in reverse order.
        for column, order, expected in (
            ("PQ", "descending", ["a.jpg", "c.jpg", "b.jpg"]),
            ("PQ", "ascending", ["b.jpg", "c.jpg", "a.jpg"]),
            ("Masks", "descending", ["c.jpg", "b.jpg", "a.jpg"]),
        ):
            browser.click(by[column])
            assert browser.evaluate(NAMES) == expected
            sorted_by = "[...document.querySelectorAll('#ranking [aria-sort]')]"
            sorted_by += ".map((e) => e.getAttribute('aria-sort'))"
            assert browser.evaluate(sorted_by) == [order]

        # By keyboard: names are sorted from A.
        browser.evaluate(f"{by['PQ']}.focus()")
        browser.press("Enter")
        assert browser.evaluate(NAMES) == ["a.jpg", "c.jpg", "b.jpg"]
        browser.evaluate(f"{by['Image']}.focus()")
        browser.press("Tab")
        assert browser.evaluate(f"document.activeElement === {by['PQ']}")
        browser.press(" ")
        assert browser.evaluate(NAMES) == ["b.jpg", "c.jpg", "a.jpg"]
        browser.click(by["Image"])
        assert browser.evaluate(NAMES) == ["a.jpg", "b.jpg", "c.jpg"]

        # A row leads to its pictures in any order.
        browser.click("document.querySelector('#ranking tbody tr:nth-child(2) a')")
        assert browser.evaluate("document.querySelector(':target h3').textContent") == "b.jpg"

        # A class without a value comes after all numbers.
        heading = "document.querySelectorAll('#classes thead button')[2]"
        names = "[...document.querySelectorAll('#classes tbody th')].map((e) => e.textContent)"
        browser.click(heading)
        assert browser.evaluate(names) == ["sky", "ball", "sand"]
        browser.click(heading)
        assert browser.evaluate(names) == ["sand", "ball", "sky"]
