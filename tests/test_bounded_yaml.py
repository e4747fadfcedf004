"""YAML of any origin: what somebody has written is read, the rest is one line."""

import pytest

from ocr_panoptic.formats.bounded_yaml import MAX_BYTES, read_yaml


def bomb(first: str, line: str) -> str:
    """Nine aliases of the line before in each."""
    pairs = zip("abcdefgh", "bcdefghi")
    lines = (line.format(new=new, old=",".join([f"*{old}"] * 9)) for old, new in pairs)
    return first + "".join(lines)


@pytest.mark.parametrize(
    "text, fault",
    [
        ("A: " + "[" * 5000 + "]" * 5000, "nested too deeply.*line 1, column 5"),
        ("A: " + "{a: " * 3000 + "1" + "}" * 3000, "nested too deeply"),
        (bomb("a: &a [x]\n", "{new}: &{new} [{old}]\n"), "aliases make it too long"),
        (bomb("a: &a {x: 1}\n", "{new}: &{new} {{<<: [{old}]}}\n"), "aliases make it too long"),
        ("A: &a\n  B: *a\n", "refers to itself.*line 2"),
        ("A: &a [*a]\n", "refers to itself"),
        ("A: a\0b\n", "special characters are not allowed"),
        ("A:\n\tB: 1\n", "cannot start any token.*line 2"),
        ("A: 2020-99-99\n", "month must be"),
        ("A: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("A: [", "line 1"),
        ("# " + "x" * MAX_BYTES, "more than 1 MiB"),
    ],
    ids=lambda text: text[:20].encode("unicode_escape").decode(),
)
def test_one_line(tmp_path, text, fault):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ValueError, match=f"x.yaml .*{fault}") as error:
        read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_no_text(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x81")
    with pytest.raises(ValueError, match="x.yaml is not valid YAML: 'utf-8' codec"):
        read_yaml(tmp_path / "x.yaml")


def test_aliases_that_somebody_has_written(tmp_path):
    """yaml.dump writes them for equal lists."""
    (tmp_path / "x.yaml").write_text("A: &id001 [1, 2]\nB: *id001\nC: {<<: {D: 3}, E: 4.5}\n")
    assert read_yaml(tmp_path / "x.yaml") == {"A": [1, 2], "B": [1, 2], "C": {"D": 3, "E": 4.5}}
