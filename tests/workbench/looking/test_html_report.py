"""The page shows its data, loads no other file, and is safe from its data."""

import re
from html.parser import HTMLParser

import pytest

from ocr_panoptic.workbench.looking.figures import ImageFigures, Picture

EVIL = """<script>alert("1")</script>&'x'"""
VOID_TAGS = {"meta", "img", "br", "line"}


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
        if tag not in VOID_TAGS:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text.append(data.strip())


def test_the_page_equals_the_files(render):
    text = Parsed(render()).text
    for value in ("71.2", "82.3", "83.5", "64.6", "95.7", "76.8", "87.9", "98.9", "51.1"):
        assert value in text
    assert text[text.index("Mask AP") + 2] == "–"  # null
    # The class table has things first, and counts without decimals.
    table = text[text.index("Kind") :]
    assert table.index("ball") < table.index("sky") < table.index("things")
    for value in ("47.1", "12", "3", "93.2"):
        assert value in table
    assert "62 %" in text and "nan" not in table and "absent" not in table
    assert any("Left out: 1 classes" in t for t in text)
    assert text[text.index("seed") + 1 :][:2].count("17") == 1


def test_the_page_loads_nothing(render):
    page = render()
    parsed = Parsed(page)
    assert parsed.links
    for link in parsed.links:
        assert link.startswith("data:") or (link[0] == "#" and f'id="{link[1:]}"' in page)
    assert not {"link", "iframe", "object", "base"} & set(parsed.tags)
    assert not re.search(r"url\(|@import|https?://", page)
    assert all(image["alt"] for image in parsed.images)


@pytest.mark.slow
def test_data_cannot_become_markup(render):
    harmless, evil = Parsed(render()), Parsed(render(EVIL))
    assert evil.tags == harmless.tags
    assert EVIL in evil.text  # class name in the table, legend
    for text in (f"Title {EVIL}", f"Description {EVIL}", f"{EVIL}.jpg", f"value {EVIL}"):
        assert text in evil.text
    assert f"{EVIL} of {EVIL}.jpg: caption {EVIL}" in [image["alt"] for image in evil.images]


@pytest.mark.slow
def test_a_run_without_a_training_log_or_soft_regions(render):
    picture = Picture("Input", "", "data:image/jpeg;base64,AAAA")
    plain = render(training_log=[], images=[ImageFigures("a.jpg", [picture], [], [])])
    text = Parsed(plain).text
    assert "Training" not in text
    assert not any("soft object region" in t.lower() for t in text)
    full = Parsed(render()).text
    assert "Training" in full
    assert any("soft object region" in t.lower() for t in full)
