"""The page shows its data, loads no other file, is safe from its data, and sorts in a browser."""

import re
from html.parser import HTMLParser

import pytest
from detectron2.data import Metadata

from ocr_panoptic.workbench.looking import report
from ocr_panoptic.workbench.looking.figures import ImageFigures, Picture, Relation
from support.browser import Browser, find_chromium

EVIL = """<script>alert("1")</script>&'x'"""
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
TASKS = {
    "panoptic_seg": {"PQ": 71.23, "SQ": 82.34, "RQ": 83.45, "PQ_th": 64.56, "PQ_st": 95.67}
    | {"objects": 41.54, "count_error": 14.36, "count_bias": -12.18},
    "sem_seg": {"mIoU": 76.78, "fwIoU": 87.89, "pACC": 98.91},
    "bbox": {"AP": 51.12},
    "segm": {"AP": None},
}
LOSSES = ("total_loss", "loss_sem_seg", "loss_sem_seg_coarse", "loss_mask")
LOG = [{"iteration": i, **dict.fromkeys(LOSSES, 2.0 / (i + 1))} for i in (19, 39, 59)]


def render(evil: str = "ball", **changes) -> str:
    """Return a page of invented results with a text in all places, and with changes."""
    metadata = Metadata(
        name="report",
        thing_classes=[evil],
        thing_colors=[[220, 0, 0]],
        stuff_classes=["things", "sky"],
        stuff_colors=[[80, 0, 120], [0, 120, 240]],
    )
    classes = {
        "panoptic_seg": {"PQ-sky": 95.67, "TP-sky": 12, "isthing-sky": 0}
        | {f"PQ-{evil}": 47.11, f"FN-{evil}": 3, f"isthing-{evil}": 1}
        | {"TP-absent": 0, "FP-absent": 0, "FN-absent": 0, "isthing-absent": 1},
        "sem_seg": {"IoU-sky": 93.2, "IoU-things": 0.0, "ACC-things": None},
        "bbox": {f"AP-{evil}": 51.12},
    }
    picture = Picture(evil, f"caption {evil}", PIXEL, "rgb(1,2,3)")
    relation = Relation(PIXEL, evil, [(evil, "rgb(1,2,3)", 61.8)])
    legend = [(evil, "rgb(1,2,3)")]
    arguments = dict(
        title=f"Title {evil}",
        description=f"Description {evil}",
        dataset=f"dataset {evil}",
        results={task: values | classes.get(task, {}) for task, values in TASKS.items()},
        training_log=LOG,
        images=[ImageFigures(f"{evil}.jpg", [picture], [picture], legend, relation)],
        metadata=metadata,
        settings={"seed": 17, f"name {evil}": f"value {evil}"},
    )
    return report.render_report(**{**arguments, **changes})


class Parsed(HTMLParser):
    """Tags, links and text of a page; badly nested tags raise an error."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.links, self.text, self.images, self._open = [], [], [], [], []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attrs = dict(attrs)
        self.links += [attrs[name] for name in ("src", "href", "xlink:href") if name in attrs]
        if tag == "img":
            self.images.append(attrs)
        if tag not in {"meta", "img"}:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text.append(data.strip())


@pytest.fixture(scope="module")
def page() -> str:
    return render()


def test_the_page_equals_the_files(page):
    text = Parsed(page).text
    for value in ("71.2", "82.3", "83.5", "64.6", "95.7", "76.8", "87.9", "98.9", "51.1"):
        assert value in text
    for value in ("41.5", "14.4", "-12.2"):
        assert value in text
    assert text.index("PQ things") < text.index("PQ")  # because there is one stuff class
    assert text.index("Count error") < text.index("PQ")
    classes = {"isthing-sky": 0, "isthing-sea": 0, "isthing-ball": 1}
    several = Parsed(render(results={"panoptic_seg": TASKS["panoptic_seg"] | classes})).text
    assert several.index("PQ") < several.index("PQ things")
    assert text[text.index("Mask AP") + 2] == "–"  # null
    # The class table has things first, and counts without decimals.
    table = text[text.index("Kind") :]
    assert table.index("ball") < table.index("sky") < table.index("things")
    for value in ("47.1", "12", "3", "93.2"):
        assert value in table
    assert "62 %" in text and "nan" not in table and "absent" not in table
    assert any("Left out: 1 classes" in t for t in text)
    assert text[text.index("seed") + 1 :][:2].count("17") == 1


def test_the_page_loads_nothing(page):
    parsed = Parsed(page)
    assert parsed.links
    for link in parsed.links:
        assert link.startswith("data:") or (link[0] == "#" and f'id="{link[1:]}"' in page)
    assert not {"link", "iframe", "object", "base"} & set(parsed.tags)
    assert not re.search(r"url\(|@import|https?://", page)
    assert all(image["alt"] for image in parsed.images)


@pytest.mark.slow
def test_data_cannot_become_markup(page):
    harmless, evil = Parsed(page), Parsed(render(EVIL))
    assert evil.tags == harmless.tags
    assert EVIL in evil.text  # class name in the table, legend
    for text in (f"Title {EVIL}", f"Description {EVIL}", f"{EVIL}.jpg", f"value {EVIL}"):
        assert text in evil.text
    assert f"{EVIL} of {EVIL}.jpg: caption {EVIL}" in [image["alt"] for image in evil.images]


def test_a_run_without_a_training_log_or_soft_regions(page):
    plain = render(training_log=[], images=[ImageFigures("a.jpg", [], [], [])])
    for text in ("Training</h2>", "soft object region"):
        assert text.lower() in page.lower() and text.lower() not in plain.lower()


def test_curves_of_the_losses():
    log = [
        {"iteration": 19, "total_loss": 4.0, "loss_sem_seg": 3.0, "loss_sem_seg_coarse": 1.0},
        {"iteration": 39, "total_loss": 2.0, "loss_sem_seg": float("nan")},
        {"iteration": 59, "loss_sem_seg": 1.0, "loss_sem_seg_coarse": 0.0},
        {"iteration": 60, "panoptic_seg/PQ": 50.0},
        {"iteration": 79, "loss_sem_seg": float("inf"), "loss_mask": -1.0},
    ]
    curves = report.loss_curves(log)
    assert curves == {
        "Total loss": {"total": [(20, 4.0), (40, 2.0)]},
        "Semantic segmentation": {"final": [(20, 3.0), (60, 1.0)], "coarse": [(20, 1.0)]},
    }
    (axes,) = report.loss_figure(curves["Total loss"]).axes
    assert axes.get_yscale() == "log" and axes.lines[0].get_xydata().tolist() == [[20, 4], [40, 2]]
    assert axes.get_legend().texts[0].get_text() == "total 2"


@pytest.mark.parametrize("number, expected", [(0, ""), (1, "e"), (3, "ebd"), (9, "ebda")])
def test_the_worst_images(number, expected):
    """Scores are compared as numbers; images without a score are left out."""
    rows = [
        {"file_name": f"{name}.jpg", "misses": "1.5"} | ({"PQ": score} if score else {})
        for name, score in zip("abcde", ("100.0", "9.5", "", "30", "8.5"), strict=True)
    ]
    found = report.worst_images(rows, "PQ", number)
    assert "".join(file_name[0] for file_name, *_ in found) == expected
    assert found[:1] == [("e.jpg", 8.5, {"misses": 1.5})][:number]


# Name: PQ, masks, confusions, false positives, misses.
IMAGES = {
    "b.jpg": (9.0, 11.0, 40.0, 30.0, 10.0),
    "c.jpg": (80.0, 20.0, 0.0, 0.0, 0.0),
    "a.jpg": (100.0, 0.0, 0.0, 0.0, 0.0),
}
KINDS = ("masks", "confusions", "false positives", "misses")


@pytest.mark.slow
@pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium")
def test_the_page_in_a_browser(tmp_path):
    """An image's five pictures lie side by side, and a table is sorted by its headings."""
    five = ImageFigures("a.jpg", [Picture(name, "", PIXEL) for name in "12345"], [], [])
    pictures = {name: ImageFigures(name, [Picture("Input", "c", PIXEL)], [], []) for name in IMAGES}
    classes = {"PQ-sky": 95.0, "PQ-ball": 7.0, "PQ-sand": None, "FN-sand": 1}
    classes |= {f"isthing-{name}": 0 for name in ("sky", "ball", "sand")}
    ranking = [
        report.RankedImage(pictures[name], score, dict(zip(KINDS, losses)))
        for name, (score, *losses) in IMAGES.items()
    ]
    results = {"panoptic_seg": {"PQ": 50.0, **classes}}
    page = tmp_path / "index.html"
    page.write_text(render(results=results, images=[five], ranking=ranking))
    with Browser(page, tmp_path / "profile") as browser:

        def all_of(selector: str, value: str) -> list[str]:
            return browser.evaluate(
                f"[...document.querySelectorAll('{selector}')].map((e) => {value})"
            )

        browser.set_width(1300)
        assert len(set(all_of("#images figure", "e.getBoundingClientRect().top"))) == 1
        browser.set_width(500)
        assert len(set(all_of("#images figure", "e.getBoundingClientRect().top"))) == 3
        headings = all_of("#ranking thead th", "e.textContent")
        assert headings[:4] == ["Image", "PQ", "Masks", "Confusions"]
        assert all_of("#ranking tbody th", "e.textContent") == list(IMAGES)
        # Numbers are sorted as numbers, the largest first, names from A; then in reverse order.
        for column, order, expected in (
            ("PQ", "descending", ["a.jpg", "c.jpg", "b.jpg"]),
            ("PQ", "ascending", ["b.jpg", "c.jpg", "a.jpg"]),
            ("Masks", "descending", ["c.jpg", "b.jpg", "a.jpg"]),
            ("Image", "ascending", ["a.jpg", "b.jpg", "c.jpg"]),
        ):
            number = headings.index(column) + 1
            button = f"document.querySelector('#ranking thead th:nth-child({number}) button')"
            browser.click(button)
            assert all_of("#ranking tbody th", "e.textContent") == expected
            assert all_of("#ranking [aria-sort]", "e.getAttribute('aria-sort')") == [order]

        # A class without a value comes after all numbers.
        for expected in (["sky", "ball", "sand"], ["sand", "ball", "sky"]):
            browser.click("document.querySelectorAll('#classes thead button')[2]")
            assert all_of("#classes tbody th", "e.textContent") == expected
