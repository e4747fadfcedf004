"""
Data registered with Detectron2's own functions train, evaluate and predict.

The weights and the metrics equal those of the same scenes in a data file.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets import (
    load_sem_seg,
    register_coco_panoptic,
    register_coco_panoptic_separated,
)
from panopticapi.utils import rgb2id
from PIL import Image
from pycocotools import mask as mask_util

import ocr_panoptic
from ocr_panoptic.data.catalog import register_data_sets, registered_metadata
from ocr_panoptic.data.metadata import panoptic_layout, with_defaults
from ocr_panoptic.errors import UserError
from support.tiny_runs import OCR_CONFIG, SEGMENTS, SEMANTIC_CONFIG, TINY, TINY_OCR, TINY_SEMANTIC

pytestmark = pytest.mark.usefixtures("clean_catalog")


def categories_of(root: Path) -> tuple[list[dict], list[dict]]:
    """Return the things and the stuff of the scenes, by ascending id."""
    categories = json.loads((root / "tiny/raw/val/panoptic.json").read_text())["categories"]
    categories.sort(key=lambda category: category["id"])
    return tuple([c for c in categories if c["isthing"] == kind] for kind in (1, 0))


def separated_metadata(root: Path) -> dict:
    """Return metadata as Detectron2's ``coco_panoptic_separated`` has them, without colours."""
    things, stuff = categories_of(root)
    return {
        "thing_classes": [c["name"] for c in things],
        "thing_dataset_id_to_contiguous_id": {c["id"]: k for k, c in enumerate(things)},
        "stuff_classes": ["things", *(c["name"] for c in stuff)],
        "stuff_dataset_id_to_contiguous_id": {0: 0, **{c["id"]: k for k, c in enumerate(stuff, 1)}},
    }


def standard_metadata(root: Path) -> dict:
    """Return metadata as Detectron2's ``coco_panoptic_standard`` has them: one list of classes."""
    classes = [c for kind in categories_of(root) for c in kind]
    names, ids = [c["name"] for c in classes], {c["id"]: k for k, c in enumerate(classes)}
    things = {c["id"] for c in classes if c["isthing"]}
    return {
        "thing_classes": names,
        "stuff_classes": names,
        "thing_dataset_id_to_contiguous_id": {n: k for n, k in ids.items() if n in things},
        "stuff_dataset_id_to_contiguous_id": {n: k for n, k in ids.items() if n not in things},
    }


def derived_files(root: Path, split: str, folder: Path) -> tuple[Path, Path]:
    """Write semantic PNGs and a COCO JSON of instances pixel by pixel, and return their paths."""
    raw, metadata = root / "tiny/raw" / split, separated_metadata(root)
    content, annotations = json.loads((raw / "panoptic.json").read_text()), []
    labels_folder = folder / split
    labels_folder.mkdir(parents=True)
    for entry in content["annotations"]:
        ids = rgb2id(np.asarray(Image.open(raw / "panoptic" / entry["file_name"])))
        labels = np.full(ids.shape, 255, np.uint8)
        for segment in entry["segments_info"]:
            mask, category = ids == segment["id"], segment["category_id"]
            labels[mask] = metadata["stuff_dataset_id_to_contiguous_id"].get(category, 0)
            if category in metadata["thing_dataset_id_to_contiguous_id"]:
                code = mask_util.encode(np.asfortranarray(mask, np.uint8))
                annotation = {key: segment[key] for key in ("category_id", "iscrowd")}
                annotation |= {"id": len(annotations) + 1, "image_id": entry["image_id"]}
                annotation |= {"area": int(mask.sum()), "bbox": mask_util.toBbox(code).tolist()}
                code = {**code, "counts": code["counts"].decode()}
                annotations.append({**annotation, "segmentation": code})
        Image.fromarray(labels).save(labels_folder / entry["file_name"])
    things = [c for c in content["categories"] if c["isthing"]]
    instances = {"images": content["images"], "annotations": annotations, "categories": things}
    (folder / f"{split}.json").write_text(json.dumps(instances))
    return labels_folder, folder / f"{split}.json"


def register_standard(root: Path, split: str, folder: Path, make=standard_metadata) -> str:
    paths = [str(root / "tiny/raw" / split / name) for name in ("images", "panoptic")]
    json_file = str(root / "tiny/raw" / split / "panoptic.json")
    register_coco_panoptic(f"theirs_{split}", make(root), *paths, json_file)
    return f"theirs_{split}"


register_things_first = partial(register_standard, make=separated_metadata)


def register_separated(root: Path, split: str, folder: Path) -> str:
    raw, (labels, instances) = root / "tiny/raw" / split, derived_files(root, split, folder)
    paths = raw / "images", raw / "panoptic", raw / "panoptic.json", labels, instances
    register_coco_panoptic_separated(f"theirs_{split}", separated_metadata(root), *map(str, paths))
    return f"theirs_{split}_separated"


def register_tutorial(root: Path, split: str, folder: Path) -> str:
    """Register Panoptic-FPN data as the tutorial does: records, and the names of the classes."""
    raw, (labels, instances) = root / "tiny/raw" / split, derived_files(root, split, folder)
    content, metadata = json.loads(instances.read_text()), separated_metadata(root)
    label = metadata["thing_dataset_id_to_contiguous_id"]

    def records() -> list[dict]:
        return [
            {
                "file_name": str(raw / "images" / image["file_name"]),
                "sem_seg_file_name": str(labels / f"{Path(image['file_name']).stem}.png"),
                **{"height": image["height"], "width": image["width"], "image_id": image["id"]},
                "annotations": [
                    {
                        **{key: a[key] for key in ("bbox", "iscrowd", "segmentation")},
                        **{"bbox_mode": 1, "category_id": label[a["category_id"]]},
                    }
                    for a in content["annotations"]
                    if a["image_id"] == image["id"]
                ],
            }
            for image in content["images"]
        ]

    DatasetCatalog.register(f"theirs_{split}", records)
    names = {key: metadata[key] for key in ("thing_classes", "stuff_classes")}
    MetadataCatalog.get(f"theirs_{split}").set(**names)
    return f"theirs_{split}"


def register_semantic(root: Path, split: str, folder: Path, ignored: int, **metadata) -> str:
    """Register label PNGs, with ``ignored`` in place of 255, with ``load_sem_seg``."""
    raw, labels = root / "tiny/raw" / split, folder / split
    labels.mkdir(parents=True)
    for path in (raw / "semantic").iterdir():
        values = np.array(Image.open(path))
        values[values == 255] = ignored
        Image.fromarray(values).save(labels / path.name)
    DatasetCatalog.register(f"theirs_{split}", lambda: load_sem_seg(labels, raw / "images"))
    names = json.loads((raw / "panoptic.json").read_text())["categories"]
    stuff_classes = [category["name"] for category in names]
    MetadataCatalog.get(f"theirs_{split}").set(stuff_classes=stuff_classes, **metadata)
    return f"theirs_{split}"


register_sem_seg_tutorial = partial(register_semantic, ignored=255)
register_sem_seg_builtin = partial(
    register_semantic, ignored=11, ignore_label=11, evaluator_type="sem_seg"
)


def run_of(config: Path, names: list[str], output: Path) -> tuple[dict, dict]:
    """Train three iterations and evaluate; return the metrics and the weights."""
    opts = [*TINY, *(TINY_SEMANTIC if config == SEMANTIC_CONFIG else [*TINY_OCR, *SEGMENTS])]
    values = map(CfgNode._decode_cfg_value, opts[1::2])
    keys = dict(zip(opts[::2], values, strict=True)) | {"SEED": 1}
    keys |= {"DATASETS.TRAIN": names[:1], "DATASETS.TEST": names[1:]}
    metrics = ocr_panoptic.train(config, output=output, deterministic=True, **keys)
    return metrics, torch.load(output / "model_final.pth", weights_only=True)["model"]


REFERENCE_RUNS: dict[Path, tuple[dict, dict]] = {}


@pytest.fixture
def reference(tiny_data, tmp_path):
    """Return a function that gives the metrics and weights of a config on the data file."""

    def make(config: Path) -> tuple[dict, dict]:
        if config not in REFERENCE_RUNS:
            stem = "tiny_sem" if config == SEMANTIC_CONFIG else "tiny"
            names = [f"{stem}_train", f"{stem}_val"]
            REFERENCE_RUNS[config] = run_of(config, names, tmp_path / "reference")
        return REFERENCE_RUNS[config]

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "register"),
    [
        (OCR_CONFIG, register_standard),
        (OCR_CONFIG, register_things_first),
        (OCR_CONFIG, register_separated),
        (OCR_CONFIG, register_tutorial),
        (SEMANTIC_CONFIG, register_sem_seg_tutorial),
        (SEMANTIC_CONFIG, register_sem_seg_builtin),
    ],
)
def test_equals_the_same_data_in_a_data_file(
    tiny_data, tmp_path, reference, config, register, capsys
):
    expected, weights = reference(config)
    names = [register(tiny_data, split, tmp_path / "derived") for split in ("train", "val")]
    metrics, own_weights = run_of(config, names, tmp_path / "run")
    tasks = {"bbox", "segm", "sem_seg"} if register is register_tutorial else expected.keys()
    assert metrics.keys() == tasks
    for task in tasks:
        assert metrics[task].keys() == expected[task].keys()
        np.testing.assert_equal(metrics[task], expected[task])
    assert all(torch.equal(own_weights[key], value) for key, value in weights.items())
    image = sorted((tiny_data / "tiny/raw/val/images").iterdir())[0]
    result = ocr_panoptic.load(tmp_path / "run").predict(image)
    assert result.segments and result.draw().size == result.labels.shape[::-1]
    again = ocr_panoptic.evaluate(tmp_path / "run", output=tmp_path / "again")
    for task in tasks:
        np.testing.assert_equal(again[task], expected[task])


def test_what_the_tutorial_does_not_set():
    given = {"thing_classes": ["cat", "dog"], "stuff_classes": ["things", "sky"]}
    given["json_file"] = None
    complete = with_defaults({**given, "thing_colors": [[1, 2, 3], [4, 5, 6]], "ignore_label": 1})
    assert complete["thing_colors"] == [[1, 2, 3], [4, 5, 6]]
    assert len(complete["stuff_colors"]) == 2 and complete["json_file"] is None
    assert complete["thing_dataset_id_to_contiguous_id"] == {0: 0, 1: 1}
    assert complete["stuff_dataset_id_to_contiguous_id"] == {-1: 0, 2: 1}
    assert complete["label_map"] == {0: 0, 1: 255}
    assert with_defaults({}) == {}


NAMES = ["road", "cat", "sky", "dog"]
LAYOUTS = {
    # ADE20K in Mask2Former: the stuff is all classes.
    "all are stuff": (
        ["cat", "dog"],
        {2: 0, 4: 1},
        NAMES,
        {1: 0, 2: 1, 3: 2, 4: 3},
        {True: {0: 0, 1: 1}, False: {0: 1, 2: 2}},
    ),
    # Cityscapes in Detectron2: both lists are all classes, by train id.
    "one list": (
        NAMES,
        {2: 1, 4: 3},
        NAMES,
        {1: 0, 3: 2},
        {True: {1: 0, 3: 1}, False: {0: 1, 2: 2}},
    ),
    "two lists from 0": (
        ["cat", "dog"],
        {2: 0, 4: 1},
        ["road", "sky"],
        {1: 0, 3: 1},
        {True: {0: 0, 1: 1}, False: {0: 1, 1: 2}},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_panoptic_classes(layout):
    things, thing_ids, stuff, stuff_ids, labels = LAYOUTS[layout]
    given = {"thing_classes": things, "thing_dataset_id_to_contiguous_id": thing_ids}
    given |= {"stuff_classes": stuff, "stuff_dataset_id_to_contiguous_id": stuff_ids}
    metadata, found = panoptic_layout("theirs", given)
    assert found == labels
    assert metadata["thing_classes"] == ["cat", "dog"]
    assert metadata["stuff_classes"] == ["things", "road", "sky"]
    assert metadata["thing_dataset_id_to_contiguous_id"] == {2: 0, 4: 1}
    assert metadata["stuff_dataset_id_to_contiguous_id"] == {0: 0, 1: 1, 3: 2}


def test_completed_once_and_in_place(tiny_data, tmp_path):
    name = register_standard(tiny_data, "val", tmp_path)
    metadata, load = MetadataCatalog.get(name), DatasetCatalog[name]
    assert register_data_sets([], [name]) == [name]
    first = DatasetCatalog.get(name)
    assert MetadataCatalog.get(name) is metadata and metadata.stuff_classes[0] == "things"
    register_data_sets([], [name])
    assert DatasetCatalog.get(name) == first
    DatasetCatalog.remove(name)  # registered anew, with the metadata that are laid out already
    DatasetCatalog.register(name, load)
    register_data_sets([], [name])
    assert DatasetCatalog.get(name) == first


@pytest.mark.parametrize("way", ["standard", "separated"])
def test_refused_with_a_data_file_that_is_enough(tiny_data, tmp_path, way):
    """The lines in the message, written to a file, register the data."""
    raw, metadata = tiny_data / "tiny/raw/val", separated_metadata(tiny_data)
    metadata["stuff_classes"] = metadata["stuff_classes"][1:]
    paths = [str(raw / name) for name in ("images", "panoptic", "panoptic.json")]
    if way == "standard":
        metadata["thing_dataset_id_to_contiguous_id"] = {}  # nothing tells what is a thing
        register_coco_panoptic("theirs_val", metadata, *paths)
    else:
        register_coco_panoptic_separated("theirs_val", metadata, *paths, "labels", "a.json")
    name = {"standard": "theirs_val", "separated": "theirs_val_separated"}[way]
    with pytest.raises(UserError, match="must begin with 'things'") as error:
        registered_metadata(name)
    _, _, lines = str(error.value).partition("as --data:\n")
    assert len(lines.splitlines()) <= 4
    (tmp_path / "a.yaml").write_text(lines)
    DatasetCatalog.remove(name)
    MetadataCatalog.remove(name)
    assert register_data_sets(tmp_path / "a.yaml") == [name]
    assert len(DatasetCatalog.get(name)) == 4


def test_segments_that_can_be_things_or_stuff(tiny_data):
    segment = {"id": 1, "category_id": 1}
    record = {"pan_seg_file_name": "a.png", "segments_info": [segment]}
    DatasetCatalog.register("theirs", lambda: [record])
    MetadataCatalog.get("theirs").set(thing_classes=["a", "b"], stuff_classes=["things", "c"])
    assert registered_metadata("theirs").evaluator_type == "coco_panoptic_seg"
    with pytest.raises(UserError, match="category_id 1 in segments_info is a thing or stuff"):
        DatasetCatalog.get("theirs")
    segment["isthing"] = True
    assert DatasetCatalog.get("theirs")[0]["annotations"][0]["segment_id"] == 1
