"""tools/export_annotations.py: what tools/predict.py wrote, for annotation tools."""

import json

import numpy as np
import pytest

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png
from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.workbench.importing.preannotations import read_predictions
from support.scripts import load_script

IDS = np.array([[0, 3, 3, 70000], [9, 9, 3, 70000]])
CATEGORIES = [
    {"id": 2, "name": "cat", "isthing": 1, "color": [1, 2, 3]},
    {"id": 5, "name": "sky", "isthing": 0, "color": [4, 5, 6]},
]
SEGMENTS = [
    {"id": 3, "category_id": 2, "iscrowd": 0, "score": 0.9, "confidence": 0.5},
    {"id": 70000, "category_id": 2, "iscrowd": 1},
    {"id": 9, "category_id": 5, "iscrowd": 0, "confidence": 0.75},
]


@pytest.fixture
def export():
    main = load_script("tools/export_annotations.py").main
    return lambda *args: main([*map(str, args)])


def write_panoptic(folder, ids=IDS, segments=SEGMENTS, size=(2, 4)):
    image = {"id": 1, "file_name": "x/a.jpg", "height": size[0], "width": size[1]}
    annotation = {"image_id": 1, "file_name": "x/a.png", "segments_info": segments}
    content = {"images": [image], "annotations": [annotation], "categories": CATEGORIES}
    folder.mkdir(exist_ok=True)
    (folder / "panoptic.json").write_text(json.dumps(content))
    write_panoptic_png(folder / "panoptic/x/a.png", ids)
    return folder


def write_semantic(folder, labels=((7, 7, 0), (0, 7, 0)), **changes):
    image = {"file_name": "a.jpg", "labels": "a.png", "height": 2, "width": 3}
    segments = [{"label": 0, "name": "sky", "area": 3, "confidence": 0.25}]
    segments.append({"label": 7, "name": "road", "area": 3, "confidence": 0.5})
    classes = [("sky", 0), ("car", 3), ("road", 7)]
    content = {
        "classes": [{"label": v, "name": n, "color": [v, v, v]} for n, v in classes],
        "images": [{**image, "segments": segments, **changes}],
    }
    folder.mkdir(exist_ok=True)
    (folder / "labels.json").write_text(json.dumps(content))
    write_label_png(folder / "labels/a.png", np.array(labels, np.uint8))
    return folder


def test_reads_panoptic_predictions(tmp_path):
    folder = write_panoptic(tmp_path / "out")
    (folder / "run.json").write_text(json.dumps({"weights_file_sha256": "0123456789abcdef"}))
    found = read_predictions(folder)
    assert found.colors == {"cat": (1, 2, 3), "sky": (4, 5, 6)}
    assert (found.count, found.model_version) == (1, "ocr_panoptic 0123456789ab")
    assert not found.frames
    (image,) = found.images
    assert (image.name, image.height, image.width) == ("x/a.jpg", 2, 4)
    cat, crowd, sky = image.segments
    assert (cat.label, cat.instance, cat.is_crowd, cat.score) == ("cat", True, False, 0.9)
    assert (crowd.label, crowd.is_crowd, crowd.score) == ("cat", True, None)
    assert (sky.label, sky.instance, sky.score) == ("sky", False, 0.75)
    for segment, number in ((cat, 3), (crowd, 70000), (sky, 9)):
        assert np.array_equal(segment.pixels(), number == IDS)
    # Any panoptic JSON with its PNGs will do.
    (again,) = read_predictions(folder / "panoptic.json").images
    assert again == image


@pytest.mark.parametrize("source, frames", [("/x/way.MP4", True), ("/x/images", False)])
def test_knows_frames_of_a_video(tmp_path, export, source, frames):
    folder = write_semantic(tmp_path / "out", file_name="000003.png")
    (folder / "run.json").write_text(json.dumps({"input": source}))
    export("--predictions", folder, "--to", "cvat", "--output", tmp_path / "a.xml")
    assert ('<image id="3" name="000003.png"' in (tmp_path / "a.xml").read_text()) == frames


def test_reads_semantic_predictions(tmp_path):
    found = read_predictions(write_semantic(tmp_path / "out"))
    assert list(found.colors.items()) == [("sky", (0,) * 3), ("car", (3,) * 3), ("road", (7,) * 3)]
    assert found.model_version == "ocr_panoptic"
    (image,) = found.images
    assert [(s.label, s.instance, s.score) for s in image.segments] == [
        ("sky", False, 0.25),
        ("road", False, 0.5),
    ]
    assert image.segments[1].pixels().tolist() == [[True, True, False], [False, True, False]]


@pytest.mark.parametrize(
    "write, reason",
    [
        (lambda f: write_panoptic(f, ids=IDS[:, :3]), "has 3x2 pixels, expected 4x2"),
        (lambda f: write_panoptic(f, segments=SEGMENTS[:2]), r"only the PNG or only .*: \[9\]"),
        (lambda f: write_panoptic(f, ids=np.where(IDS == 9, 3, IDS)), r"has: \[9\]"),
        (lambda f: write_panoptic(f, segments=[{**SEGMENTS[0], "category_id": 8}]), "category 8"),
        (lambda f: (write_panoptic(f) / "panoptic/x/a.png").unlink(), "PNG not found"),
        (lambda f: write_semantic(f, [[7, 0], [0, 0]]), "has 2x2 pixels, expected 3x2"),
        (lambda f: write_semantic(f, [[7, 1, 0], [0, 0, 0]]), r"labels \[1\] are of no class"),
        (lambda f: write_semantic(f, file_name="../a.jpg"), "must lie inside the given folder"),
        (lambda f: write_semantic(f, file_name="a\n.jpg"), "control characters"),
    ],
)
def test_refuses_what_does_not_fit_and_writes_nothing(tmp_path, export, write, reason):
    write(tmp_path / "out")
    (tmp_path / "new").mkdir()
    with pytest.raises(DataFaults, match=reason):
        export(
            "--predictions", tmp_path / "out", "--to", "cvat", "--output", tmp_path / "new/a.xml"
        )
    assert not list((tmp_path / "new").iterdir())


def test_refuses_other_folders_and_options(tmp_path, export, capsys):
    with pytest.raises(FileNotFoundError, match="expected a panoptic JSON, or a folder of ocr"):
        read_predictions(tmp_path)
    (tmp_path / "labels.json").write_text('{"classes": [{}]}')
    with pytest.raises(ValueError, match="is no labels.json of ocr-panoptic predict"):
        read_predictions(tmp_path)
    with pytest.raises(SystemExit):
        known = "--predictions", tmp_path, "--output", tmp_path / "a.xml"
        export(*known, "--to", "cvat", "--from-name", "brush")
    assert "are of --to label-studio" in capsys.readouterr().err
