"""YAML files: what somebody has written is read, anything else is one line that names the file."""

import pytest

from ocr_panoptic.formats.files import read_yaml


@pytest.mark.parametrize(
    "text, fault",
    [
        (b"A:\n\tB: 1\n", "cannot start any token.*line 2"),
        (b"A: [", "line 1"),
        (b"A: 2020-99-99\n", "month must be"),
        (b"A: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        (b"A: 1\nB: {C: 1, D: 2, C: 3}\n", "the key 'C' is given twice.*line 2"),
        (b"A: 1\nB: 1\nA: 1\n", "the key 'A' is given twice.*line 3"),
        (b"\xff\xfe\x81", "'utf-8' codec"),
    ],
)
def test_one_line(tmp_path, text, fault):
    (tmp_path / "x.yaml").write_bytes(text)
    with pytest.raises(ValueError, match=f"x.yaml is not valid YAML: .*{fault}") as error:
        read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(error.value)


def test_aliases_and_merged_keys(tmp_path):
    """yaml.dump writes aliases for equal lists; a merged key may be given again."""
    (tmp_path / "x.yaml").write_text(
        "A: &a [1, 2]\nB: *a\nC: &c {D: 3}\nE: {<<: *c, D: 4, '1': x, 1: y}\n"
    )
    assert read_yaml(tmp_path / "x.yaml") == {
        **{"A": [1, 2], "B": [1, 2], "C": {"D": 3}},
        "E": {"D": 4, "1": "x", 1: "y"},
    }
