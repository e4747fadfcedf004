"""Damaged and hostile annotations: an import, or a message and nothing written."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from ocr_panoptic.data import AnnotationSource, ImportPlan, import_annotations
from ocr_panoptic.data.annotations.kinds import Kinds
from ocr_panoptic.formats.label_png import write_label_png
from support.fuzz import breach, mutated_bytes, mutated_json, mutated_png, run_trials
from support.imported import FIXTURES, SCENES

TRIALS = int(os.getenv("OCR_PANOPTIC_FUZZ_TRIALS", "30"))
SECONDS = float("inf") if "OCR_PANOPTIC_FUZZ_TRIALS" in os.environ else 1
SEED = int(os.getenv("OCR_PANOPTIC_FUZZ_SEED", "0"))
KINDS = Kinds(("ball", "crate", "tent", "starfish"), ("sky", "forest", "water", "sand", "grass"))

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_catalog", "hostile_files")]


def cityscapes(root: Path) -> None:
    """One scene with a PNG of instance ids and polygons."""
    for folder in ("png", "json", "images"):
        (root / folder).mkdir(parents=True)
    labels = np.full((64, 64), 23, np.uint16)
    labels[5:20, 5:20] = 26001
    write_label_png(root / "png/a_instanceIds.png", labels)
    objects = [
        {"label": "sky", "polygon": [[0, 0], [63, 0], [63, 63], [0, 63]]},
        {"label": "cargroup", "polygon": [[5, 5], [20, 5], [20, 20]], "deleted": 0},
    ]
    content = {"imgHeight": 64, "imgWidth": 64, "objects": objects}
    (root / "json/a_gtFine_polygons.json").write_text(json.dumps(content))
    shutil.copy(SCENES / "images/train_00000.jpg", root / "images/a_leftImg8bit.jpg")


def formats(root: Path) -> dict[str, tuple[AnnotationSource, str, Kinds | None, str | None]]:
    """Format -> its source in a folder of copies, the files to spoil, kinds, what crowds are."""
    cityscapes(root / "cityscapes")
    for name in ("voc", "yolo", "supervisely", "coco", "coco_polygons"):
        shutil.copytree(FIXTURES / name, root / name)
    images, city = SCENES / "images", root / "cityscapes"
    return {
        "coco": (
            AnnotationSource(root / "coco_polygons/annotations.json", images),
            "coco_polygons/annotations.json",
            None,
            None,
        ),
        "coco ": (
            AnnotationSource(root / "coco/annotations/instances_train.json", images),
            "coco/annotations/*.json",
            None,
            "objects",
        ),
        "voc": (AnnotationSource(root / "voc", images), "voc/**/*.*", KINDS, None),
        "yolo-seg": (AnnotationSource(root / "yolo/data.yaml"), "yolo/**/*.[ty]*", None, None),
        "supervisely": (
            AnnotationSource(root / "supervisely"),
            "supervisely/**/*.json",
            KINDS,
            None,
        ),
        "cityscapes": (AnnotationSource(city / "png", city / "images"), "*/png/*", None, None),
        "cityscapes-polygons": (
            AnnotationSource(city / "json", city / "images"),
            "*/json/*",
            Kinds(("car",), ("sky",)),
            None,
        ),
    }


def mutated(path: Path, rng: random.Random) -> bytes:
    mutate = {".png": mutated_png, ".json": mutated_json}.get(path.suffix, mutated_bytes)
    return mutate(path.read_bytes(), rng)


@pytest.mark.parametrize(
    "name",
    ["coco", "coco ", "voc", "yolo-seg", "supervisely", "cityscapes", "cityscapes-polygons"],
)
def test_formats(tmp_path, name):
    source, pattern, kinds, crowds = formats(tmp_path / "source")[name]
    files = sorted(p for p in (tmp_path / "source").glob(pattern) if p.is_file())
    plan = ImportPlan(name.strip(), kinds=kinds, crowds=crowds)
    output = tmp_path / "data/x"

    def trial(rng):
        path = rng.choice(files)
        original = path.read_bytes()
        path.write_bytes(mutated(path, rng))
        # A message about classes names those; a panoptic data set of stuff alone is none.
        names = (str(tmp_path), "lists of --things", "No class is a thing", "do not say which")
        result = breach(
            lambda: import_annotations("x", {"train": source}, plan, output, workers=1),
            tmp_path / "data",
            names,
        )
        path.write_bytes(original)
        shutil.rmtree(output, ignore_errors=True)
        return result

    import_annotations("x", {"train": source}, plan, output, workers=1)
    shutil.rmtree(output)
    found = run_trials(TRIALS, SEED, trial, tmp_path / "canary", SECONDS)
    assert not found, f"{len(found)} kinds:\n" + "\n\n".join(found.values())
