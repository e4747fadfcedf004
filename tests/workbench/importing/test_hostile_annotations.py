"""Damaged and hostile annotations: an import, or a message and nothing written."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.workbench.importing.import_plan import AnnotationSource, ImportPlan
from ocr_panoptic.workbench.importing.importing import import_annotations
from ocr_panoptic.workbench.importing.kinds import Kinds
from support.fuzz import breach, mutated_bytes, mutated_json, mutated_png, run_trials
from support.imported import FIXTURES, SCENES
from support.tool_exports import EXPORTS, KINDS

TRIALS = int(os.getenv("OCR_PANOPTIC_FUZZ_TRIALS", "30"))
SECONDS = float("inf") if "OCR_PANOPTIC_FUZZ_TRIALS" in os.environ else 1
SEED = int(os.getenv("OCR_PANOPTIC_FUZZ_SEED", "0"))
CVAT_SHAPES = """
    <polygon label="ball" points="2.5,3;20,4;9.5,20" z_order="2" group_id="1"/>
    <box label="crate" xtl="30" ytl="5" xbr="40" ybr="15" rotation="20"/>
    <ellipse label="ball" cx="20" cy="30" rx="8" ry="5" rotation="10" group_id="1"/>
</image>"""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_catalog", "hostile_files")]


def cityscapes(root: Path) -> None:
    """Write one scene with a PNG of instance ids and polygons."""
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


def copy_sources(root: Path) -> None:
    """Copy all sources into a folder, and make what no tool has written."""
    cityscapes(root / "cityscapes")
    for name in ("voc", "yolo", "supervisely", "coco", "coco_polygons"):
        shutil.copytree(FIXTURES / name, root / name)
    shutil.copytree(EXPORTS, root / "exports")
    cvat = root / "exports/cvat.xml"
    cvat.write_text(cvat.read_text().replace("</image>", CVAT_SHAPES))


def mutated(path: Path, rng: random.Random) -> bytes:
    mutate = {".png": mutated_png, ".json": mutated_json}.get(path.suffix, mutated_bytes)
    return mutate(path.read_bytes(), rng)


SCENE_IMAGES, CITY_IMAGES, TOOLS = SCENES / "images", "cityscapes/images", "exports/images"
OURS, CITY = {"kinds": KINDS}, {"kinds": Kinds(("car",), ("sky",))}


@pytest.mark.parametrize(
    "format, source, images, files, options",
    [
        ("coco", "coco_polygons/annotations.json", SCENE_IMAGES, "", {}),
        ("coco", "coco/annotations/instances_train.json", SCENE_IMAGES, "", {"crowds": "objects"}),
        ("voc", "voc", SCENE_IMAGES, "voc/**/*.*", OURS),
        ("yolo-seg", "yolo/data.yaml", None, "yolo/**/*.[ty]*", {}),
        ("supervisely", "supervisely", None, "supervisely/**/*.json", OURS),
        ("cityscapes", "cityscapes/png", CITY_IMAGES, "*/png/*", {}),
        ("cityscapes-polygons", "cityscapes/json", CITY_IMAGES, "*/json/*", CITY),
        ("cvat", "exports/cvat.xml", TOOLS, "", OURS),
        ("labelme", "exports/labelme", TOOLS, "exports/labelme/**/*.json", OURS),
        ("labelme", "exports/labelme_shapes", TOOLS, "exports/labelme_shapes/*.json", OURS),
        ("label-studio", "exports/label_studio.json", TOOLS, "", OURS),
    ],
)
def test_formats(tmp_path, format, source, images, files, options):
    root = tmp_path / "source"
    copy_sources(root)
    spoiled = sorted(p for p in root.glob(files) if p.is_file()) if files else []
    spoiled = spoiled or [root / source]
    plan = ImportPlan(format, **options)
    sources = {"train": AnnotationSource(root / source, images and root / images)}
    output = tmp_path / "data/x"

    def trial(rng):
        path = rng.choice(spoiled)
        original = path.read_bytes()
        path.write_bytes(mutated(path, rng))
        # A message about classes names those, one about a split its name; a panoptic data set of
        # stuff alone is none.
        names = (str(tmp_path), "lists of --things", "No class is a thing", "do not say which")
        names += ("train: no image shows any class",)
        result = breach(
            lambda: import_annotations("x", sources, plan, output, workers=1),
            tmp_path / "data",
            names,
        )
        path.write_bytes(original)
        shutil.rmtree(output, ignore_errors=True)
        return result

    import_annotations("x", sources, plan, output, workers=1)
    shutil.rmtree(output)
    found = run_trials(TRIALS, SEED, trial, tmp_path / "canary", SECONDS)
    assert not found, f"{len(found)} kinds:\n" + "\n\n".join(found.values())
