import os
import tracemalloc

import pytest

from ocr_panoptic.formats import bounded_xml
from ocr_panoptic.formats.bounded_xml import read_parts


@pytest.fixture
def parts(tmp_path):
    def read(content: str | bytes) -> list:
        path = tmp_path / "file.xml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return list(read_parts(path, "a"))

    return read


def test_gives_the_parts_below_the_root(parts):
    first, second = parts('<?xml version="1.0"?>\n<a>x<b c="1">&lt;text<d/></b>tail<e/></a>\n')
    assert (first.tag, first.attrib, first.text, [child.tag for child in first]) == (
        "b",
        {"c": "1"},
        "<text",
        ["d"],
    )
    assert second.tag == "e" and len(second) == 0
    assert parts("<a/>") == []


def test_reads_a_part_that_is_longer_than_a_block(parts, monkeypatch):
    monkeypatch.setattr(bounded_xml, "BLOCK", 7)
    assert [part.get("x") for part in parts('<a><b x="0123456789 0123456789"/><b x="ü"/></a>')] == [
        "0123456789 0123456789",
        "ü",
    ]


def test_keeps_no_part_that_was_given(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_xml, "BLOCK", 1 << 14)
    path = tmp_path / "file.xml"
    path.write_text("<a>" + f'<b x="{"0" * 100_000}"/>' * 50 + "</a>")
    tracemalloc.start()
    try:
        assert sum(len(part.get("x")) for part in read_parts(path, "a")) == 5_000_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    "content, reason",
    [
        ('<!DOCTYPE a [<!ENTITY x "y">]><a><b>&x;</b></a>', "document type"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><a><b/></a>', "document type"),
        ("<a><b>&x;</b></a>", "undefined entity"),
        ("<a>" + "<b>" * 50 + "</b>" * 50 + "</a>", "nested too deeply"),
        ("<q><b/></q>", "root is <q>, expected <a>"),
        ("<a><b></a>", "mismatched tag"),
        ("<a><b/>", "no element found"),
        ("", "no element found"),
        ('<?xml version="1.0" encoding="klingon"?><a/>', "unknown encoding"),
        (b"<a>\xff\xfe</a>", "invalid token"),
        ('<a b="&#7;"/>', "invalid character"),
    ],
)
def test_refuses(parts, content, reason):
    with pytest.raises(ValueError, match=f"file.xml: cannot be read as XML .*{reason}"):
        parts(content)


def test_reads_fifty_levels(parts):
    assert len(parts("<a>" + "<b>" * 49 + "</b>" * 49 + "</a>")) == 1


def test_refuses_a_part_without_end(parts, monkeypatch):
    monkeypatch.setattr(bounded_xml, "BLOCK", 64)
    monkeypatch.setattr(bounded_xml, "MAX_PART_BYTES", 1 << 16)
    many_parts = "<a>" + "<b/>" * (1 << 15) + "</a>"
    assert len(parts(many_parts)) == 1 << 15
    with pytest.raises(ValueError, match="an element of more than 0 MiB"):
        parts("<a><b>" + "<c/>" * (1 << 15) + "</b></a>")


def test_names_a_missing_file_and_does_not_wait_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("none.xml", "pipe"):
        with pytest.raises(FileNotFoundError, match=name):
            list(read_parts(tmp_path / name, "a"))
