"""The class file: allowed contents and faults."""

from dataclasses import replace

import pytest

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.data.semantic.label_space import LabelSpace, parse_label_space, read_class_file
from support.faults import faults_of

FULL = """
classes:
  - {name: road, color: [128, 64, 128], labels: [7, 8]}
  - {name: left arm, labels: 300}
  - {name: right arm, labels: [1]}
ignore: [0, 255]
flip_pairs: [[left arm, right arm]]
"""


def test_all_keys(tmp_path):
    path = tmp_path / "classes.yaml"
    path.write_text(FULL)
    space = read_class_file(path)
    assert space.classes == ("road", "left arm", "right arm")
    assert space.label_map == {7: 0, 8: 0, 300: 1, 1: 2, 0: 255, 255: 255}
    assert space.colors[0] == (128, 64, 128)
    assert len(set(space.colors)) == 3
    assert space.flip_pairs == ((1, 2),)
    assert space.metadata() == {
        **{"evaluator_type": "sem_seg", "ignore_label": 255},
        "stuff_classes": ["road", "left arm", "right arm"],
        "stuff_colors": [list(color) for color in space.colors],
        **{"label_map": space.label_map, "flip_pairs": [(1, 2)]},
    }


def test_the_order_of_a_trained_model():
    space = parse_label_space({"classes": ["a", "b", "c"], "flip_pairs": [["a", "b"]]}, "")
    space = replace(space, class_categories=("x", "y", "z"))
    assert space.with_classes(["c", "a", "b"]) == LabelSpace(
        classes=("c", "a", "b"),
        label_map={0: 1, 1: 2, 2: 0, 255: 255},
        colors=(space.colors[2], *space.colors[:2]),
        flip_pairs=((1, 2),),
        default_ignore=True,
        class_categories=("z", "x", "y"),
    )


@pytest.mark.parametrize(
    ("content", "label_map"),
    [
        ({"classes": ["sky", "road"]}, {0: 0, 1: 1, 255: 255}),
        ({"classes": ["sky", "road"], "ignore": 2}, {0: 0, 1: 1, 2: 255}),
        # Binary masks: no label is ignored.
        ({"classes": [{"name": "a", "labels": 0}, {"name": "b", "labels": 255}]}, {0: 0, 255: 1}),
    ],
)
def test_maps_of_labels(content, label_map):
    space = parse_label_space(content, "c")
    assert (space.label_map, space.flip_pairs) == (label_map, ())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], 'expected "classes:" with a list'),
        ({"classes": ["crack"], "ignore": 0}, "'crack' is the only class, so a model"),
        ({"classes": []}, "found 0 classes, expected 2 to 255"),
        ({"classes": [str(i) for i in range(256)]}, "256 classes"),
        ({"classes": ["a", "b", "a"]}, "class 'a' is listed 2 times"),
        ({"classes": ["a", True]}, r"must be a non-empty string, found True"),
        ({"classes": ["\x1b[31m"]}, r"class '\\x1b\[31m': the name must not contain control char"),
        ({"classes": [{"name": "a", "id": 3}]}, "class 'a': unknown key 'id'"),
        ({"classes": ["a"], "void": 0}, "unknown key 'void'"),
        ({"classes": [{"name": "a", "color": [0, 0, 256]}]}, "color must be three integers"),
        ({"classes": ["a", {"name": "b", "labels": 3}]}, "'a' must have labels, because"),
        ({"classes": [{"name": "a", "labels": []}]}, "class 'a' has an empty list"),
        ({"classes": ["a"], "ignore": 65536}, "'ignore': label 65536 is neither an integer"),
        ({"classes": [{"name": "a", "labels": [-1]}]}, "label -1 is neither an integer 0..65535"),
        ({"classes": ["a", "b"], "ignore": 1}, "used twice, .* 'ignore'.*label of class b"),
        ({"classes": ["a"], "flip_pairs": ["a"]}, "must be a list of pairs of class names"),
        ({"classes": ["a"], "flip_pairs": [["a", "b"]]}, "names 'b', which is not a class"),
        ({"classes": ["a", "b", "c"], "flip_pairs": [["a", "b"], ["a", "c"]]}, "names 'a' 2 times"),
    ],
)
def test_faults(content, message):
    with pytest.raises(DataFaults, match=f"c.yaml: .*{message}"):
        parse_label_space(content, "c.yaml")


def test_names_in_any_script():
    names = ["straße", "道路", "پیاده\u200cرو", "rue\u00a0nord"]  # a joiner, a no-break space
    assert parse_label_space({"classes": names}, "c").classes == tuple(names)


def test_all_faults_together_and_a_missing_file(tmp_path):
    content = {"classes": ["a", "a", 3], "ignore": "b", "extra": 0}
    assert len(faults_of(parse_label_space, content, "c")) == 4
    with pytest.raises(FileNotFoundError, match="class file not found"):
        read_class_file(tmp_path / "classes.yaml")
