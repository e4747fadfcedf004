"""Things, stuff and void: from a file, a format's list or segments; the message that asks."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as rle

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.workbench.importing.annotated_image import AnnotatedImage, Segment
from ocr_panoptic.workbench.importing.cityscapes import CITYSCAPES_KINDS, NAMES
from ocr_panoptic.workbench.importing.kinds import (
    Kinds,
    add_classes,
    check_classes,
    check_crowds,
    given_kinds,
    read_kinds,
    resolve_kinds,
)

MASK = rle.encode(np.ones((2, 2), np.uint8, order="F"))


def image(**labels: object) -> AnnotatedImage:
    """Return an image; label -> ``instance`` of a segment, or of several segments."""
    segments = [
        Segment(label, MASK, instance=one)
        for label, instances in labels.items()
        for one in (instances if isinstance(instances, list) else [instances])
    ]
    return AnnotatedImage(None, "a.jpg", 2, 2, segments)


def count_classes(images: list[AnnotatedImage]) -> dict:
    found = {}
    for one in images:
        add_classes(found, one)
    return dict(sorted(found.items()))


def written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "things.yaml").write_text(text)
    return tmp_path / "things.yaml"


def test_a_file(tmp_path):
    text = "things: [car, 'no']\nstuff: [road]\nignore: [ego]\ncolors: {road: [128, 64, 128]}"
    kinds = read_kinds(written(tmp_path, text))
    assert kinds == Kinds(("car", "no"), ("road",), ("ego",), {"road": (128, 64, 128)})
    assert kinds.classes == ("car", "no", "road")
    assert kinds.color("road") == (128, 64, 128) != kinds.color("car")


@pytest.mark.parametrize(
    "text, messages",
    [
        ("things: [a, b]\nstuff: [b]\nignore: [b]", ["class 'b' is listed 3 times"]),
        ("things: [a]\nthings_: [b]", ["unknown key 'things_'; expected things, stuff"]),
        ("things: car", ["things, stuff and ignore .* lists of names"]),
        ("things: [no]", [r"class False: the name must be a non-empty string"]),
        ("things: [a]\ncolors: {a: red, b: [1, 2, 3]}", ["three integers", "'b' is not in"]),
        ("- car", ["expected the keys things and stuff"]),
        ('things: ["a\\nb"]', ["not contain control characters"]),
    ],
)
def test_faults_of_a_file(tmp_path, text, messages):
    path = written(tmp_path, text)
    with pytest.raises(ValueError) as error:
        read_kinds(path)
    for message in messages:
        error.match(f"{path}: .*{message}")


def test_segments_determine_kinds():
    found = count_classes([image(car=[True, False], road=False), image(car=True, sky=False)])
    assert {name: (c.images, sum(c.segments.values())) for name, c in found.items()} == {
        **{"car": (2, 3), "road": (1, 1), "sky": (1, 1)}
    }
    assert resolve_kinds(found, None, None, None) == Kinds(("car",), ("road", "sky"))
    assert resolve_kinds(found, None, None, "ground").stuff == ("road", "sky", "ground")
    assert resolve_kinds(found, None, None, "sky").stuff == ("road", "sky")
    assert resolve_kinds(found, None, None, "car").stuff == ("car", "road", "sky")
    with pytest.raises(ValueError, match="--rest car: expected a stuff class"):
        resolve_kinds(found, None, Kinds(("car",), ("road", "sky")), "car")
    unknown = count_classes([image(car=True, road=None)])
    assert resolve_kinds(unknown, None, None, "road") == Kinds(("car",), ("road",))


def test_the_suggested_file_is_valid(tmp_path):
    odd = {"no": None, "12": None, "a: b": None, "é": None}
    found = count_classes([image(car=None, road=False, tree=[None, True], **odd)] * 2)
    with pytest.raises(ValueError) as error:
        resolve_kinds(found, None, None, None)
    text = str(error.value)
    assert "  car: 2 segments in 2 images\n" in text
    assert "  road: 2 segments in 2 images, stuff in the annotations\n" in text
    assert "  tree: 4 segments in 2 images\n" in text
    lines = text[text.index("  things:") :]
    path = written(tmp_path, "\n".join(line[2:] for line in lines.splitlines()))
    assert read_kinds(path) == Kinds(("12", "a: b", "car", "no", "tree", "é"), ("road",))
    assert resolve_kinds(found, read_kinds(path), None, None) == read_kinds(path)


def test_a_semantic_data_set_needs_no_kinds():
    found = count_classes([image(car=None, road=None)])
    assert resolve_kinds(found, None, None, "sky", semantic=True).classes == ("car", "road", "sky")


@pytest.mark.parametrize(
    "crowds, is_refused",
    [([[True], [False]], False), ([[True, True], [False]], True), ([[True], [True]], True)],
)
def test_crowds_that_may_be_objects(crowds, is_refused):
    """An image has several crowds of a class, or a class has only crowds."""
    images = [
        AnnotatedImage(None, "", 2, 2, [Segment("car", MASK, True, is_crowd=one) for one in listed])
        for listed in crowds
    ]
    with pytest.raises(ValueError, match="marked as crowds") if is_refused else nullcontext():
        check_crowds(count_classes(images))


def test_missing_classes():
    found = count_classes([image(car=[True] * 3, road=False)])
    given = Kinds(("cars", "dog"), ("road",))
    with pytest.raises(DataFaults) as error:
        resolve_kinds(found, given, None, "sky")
    assert [fault.split(".")[0] for fault in error.value.faults] == [
        "class 'car' (3 segments in 1 images) is missing from the --things file"
    ]
    error.match("Did you mean cars")
    assert resolve_kinds({}, given, None, "sky").stuff == ("road", "sky")


def test_the_list_of_a_format():
    """The whole list is used, also classes not found, unless other classes are found."""
    found = count_classes([image(car=None)])
    assert resolve_kinds(found, None, CITYSCAPES_KINDS, None) == CITYSCAPES_KINDS
    other = count_classes([image(car=None, zebra=True)])
    with pytest.raises(ValueError, match="  zebra: 1 segments"):
        resolve_kinds(other, None, CITYSCAPES_KINDS, None)


def test_the_list_of_cityscapes_equals_cityscapesscripts():
    labels = pytest.importorskip("cityscapesscripts.helpers.labels").labels
    own = [label for label in labels if label.id >= 0]
    assert {label.id: label.name for label in own} == NAMES
    evaluated = [label for label in own if not label.ignoreInEval]
    assert CITYSCAPES_KINDS.things == tuple(x.name for x in evaluated if x.hasInstances)
    assert CITYSCAPES_KINDS.stuff == tuple(x.name for x in evaluated if not x.hasInstances)


@pytest.mark.parametrize(
    "kinds, semantic, message",
    [
        (Kinds(ignore=("a",)), False, "No classes are left"),
        (Kinds(stuff=("a",)), False, "No class is a thing"),
        (Kinds(("x",), tuple(map(str, range(255)))), False, "256 labels.* 255"),
        (Kinds(("a",)), True, "'a' is the only class.* --rest background"),
        (Kinds(stuff=tuple(map(str, range(256)))), True, "256 labels.* 255"),
    ],
)
def test_too_few_or_too_many_classes(kinds, semantic, message):
    with pytest.raises(ValueError, match=message):
        check_classes(kinds, semantic)


def test_names_of_things(tmp_path):
    found = count_classes([image(car=None, road=None, sky=None, Car=None)])
    kinds = given_kinds(["car", "Car"])
    assert resolve_kinds(found, kinds, None, "sky") == Kinds(("car", "Car"), ("road", "sky"))
    assert resolve_kinds({}, kinds, None, None).things == ("car", "Car")
    with pytest.raises(DataFaults, match="--things cars: .* no class .* Did you mean car"):
        resolve_kinds(found, given_kinds(["cars"]), None, None)
    assert given_kinds([str(written(tmp_path, "things: [a]"))]) == Kinds(("a",))
    with pytest.raises(FileNotFoundError):
        given_kinds(["absent.yaml"])
