#!/usr/bin/env python
"""
Prepare CamVid as a semantic (camvid_*) and a panoptic data set (camvid_panoptic_*).

CamVid has no instances, so the panoptic data set approximates them: each connected component of a
thing class is an instance. Touching things of a class become one instance, and a thing that a pole
divides becomes two. Panoptic scores on these data also depend on this approximation.

In shapes, H and W are the size of the image.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

from ocr_panoptic.data.classes import derived_color
from ocr_panoptic.data.data_check import check_sources
from ocr_panoptic.data.data_file import PanopticSplit, SemanticSplit, write_data_file
from ocr_panoptic.data.faults import faults_listed
from ocr_panoptic.data.panoptic.annotations import Category
from ocr_panoptic.data.places import datasets_root
from ocr_panoptic.data.semantic.label_space import parse_label_space
from ocr_panoptic.data.semantic.records import LabelledFolder, SemanticSource
from ocr_panoptic.errors import MissingFileError
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png
from ocr_panoptic.formats.files import check_output_folder, write_lists
from ocr_panoptic.formats.labels import read_label_image
from ocr_panoptic.formats.pictures import read_size
from ocr_panoptic.formats.segment_runs import segment_statistics
from ocr_panoptic.progress import imap_with_progress

# In the order of the labels; 11 is void.
_CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence"),
    *("car", "pedestrian", "bicyclist"),
)
_VOID = 11
THINGS = ("car", "pedestrian", "bicyclist")
# Smaller components are distant things or slivers behind poles; they form one crowd per class.
SMALLEST_INSTANCE = 100 / (360 * 480)  # share of the image's area


def prepare_camvid(source: Path, root: Path, workers: int | None = None) -> list[Path]:
    """
    Write the data sets ``camvid_<split>`` and ``camvid_panoptic_<split>``.

    Args:
        source: folder of CamVid with the splits train, val and, optionally, test. The images and
            labels of train, for example, are in ``train/images`` and ``train/labels`` or, as in the
            public copy, in ``train`` and ``trainannot``.
        root: folder of data sets, ``$DETECTRON2_DATASETS``.
        workers: number of processes; by default the number of cores, at most 8.

    Returns:
        data file of the semantic data set (which uses the files in ``source``), and data file of
        the panoptic data set (whose files are in ``root``)
    """
    splits = find_splits(source)
    semantic, panoptic = (root / name / f"{name}.yaml" for name in ("camvid", "camvid_panoptic"))
    fix = "Set DETECTRON2_DATASETS to a folder that you can write to."
    check_output_folder(panoptic.parent, "The output folder", fix)
    classes = {"classes": list(_CLASSES), "ignore": _VOID}
    space = parse_label_space(classes, "CamVid")
    sources = [SemanticSource(f"camvid_{name}", split, space) for name, split in splits.items()]
    check_sources(sources, workers, thorough=True)
    write_data_file(semantic, "camvid", splits, **classes)
    made = {
        name: write_panoptic_split(split, panoptic.parent / "raw" / name, workers)
        for name, split in splits.items()
    }
    write_data_file(panoptic, "camvid_panoptic", made)
    return [semantic, panoptic]


def find_splits(source: Path) -> dict[str, SemanticSplit]:
    """Return the image and label folder of each split; both layouts of CamVid are accepted."""
    splits = {}
    for name in ("train", "val", "test"):
        layouts = (
            SemanticSplit(source / name / "images", source / name / "labels"),
            SemanticSplit(source / name, source / f"{name}annot"),
        )
        split = next((s for s in layouts if s.images.is_dir() and s.labels.is_dir()), None)
        if split is not None:
            splits[name] = split
        elif name != "test":
            raise MissingFileError(
                f"{source}: expected the folders {name}/images and {name}/labels, or {name} and "
                f"{name}annot. Give the folder that contains CamVid's {name} split."
            )
    return splits


def write_panoptic_split(split: SemanticSplit, output: Path, workers: int | None) -> PanopticSplit:
    """Write a split to ``output`` in COCO panoptic format; return the written paths."""
    pairs = LabelledFolder(split.images, split.labels).pairs()
    write = partial(_write_image, images=split.images, folder=output / "panoptic")
    numbered = list(enumerate(pairs, 1))
    entries = imap_with_progress(write, numbered, f"panoptic {output.name}", workers)
    images, annotations = zip(*entries)
    categories = [
        Category(label + 1, name, name in THINGS, derived_color(label)).as_json()
        for label, name in enumerate(_CLASSES)
    ]
    write_lists(
        output / "panoptic.json", images=images, annotations=annotations, categories=categories
    )
    return PanopticSplit(split.images, output / "panoptic.json", output / "panoptic")


def _write_image(
    numbered: tuple[int, tuple[Path, Path]], images: Path, folder: Path
) -> tuple[dict, dict]:
    number, (path, label_png) = numbered
    ids, segments = instances_from_labels(read_label_image(label_png))
    image = path.relative_to(images)
    name = f"{image.with_suffix('').as_posix().replace('/', '_')}.png"
    write_panoptic_png(folder / name, ids)
    width, height = read_size(path)[:2]
    return (
        {"id": number, "file_name": image.as_posix(), "height": height, "width": width},
        {"image_id": number, "file_name": name, "segments_info": segments},
    )


def instances_from_labels(labels: np.ndarray) -> tuple[np.ndarray, list[dict]]:
    """
    Convert CamVid's labels to panoptic segments.

    Each stuff class becomes one segment. Each 8-connected component of a thing class becomes one
    segment if it covers at least the share ``SMALLEST_INSTANCE`` of the image; the smaller
    components of the class together form one crowd segment.

    Args:
        labels: uint8 [H, W], 0..11.

    Returns:
        segment ids int32 [H, W] (0 is void), and segments_info in COCO panoptic format, where each
        category id is the label + 1
    """
    import cv2

    ids = np.zeros(labels.shape, np.int32)
    segments: list[dict] = []  # with the ids 1, 2, ...

    def add(mask: np.ndarray, label: int, iscrowd: int = 0) -> None:
        if mask.any():
            number = len(segments) + 1
            segments.append({"id": number, "category_id": label + 1, "iscrowd": iscrowd})
            ids[mask] = number

    for label, name in enumerate(_CLASSES):
        mask = labels == label
        if name not in THINGS:
            add(mask, label)
            continue
        _, parts, statistics, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8))
        areas = statistics[:, cv2.CC_STAT_AREA]
        small = np.flatnonzero(areas < SMALLEST_INSTANCE * labels.size)
        for part in range(1, len(areas)):  # 0 is outside the mask
            if part not in small:
                add(parts == part, label)
        add(mask & np.isin(parts, small), label, iscrowd=1)
    statistics = segment_statistics(ids)
    return ids, [{**segment, **statistics[segment["id"]]._asdict()} for segment in segments]


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("source", type=Path, help="folder with train, val and optionally test")
    parser.add_argument("--workers", type=int, help="processes (default: one per core, up to 8)")
    return parser


def main(argv: list[str] | None = None) -> None:
    args = argument_parser().parse_args(argv)
    with faults_listed(datasets_root() / "camvid_faults.txt"):
        files = prepare_camvid(args.source, datasets_root(), args.workers)
    print("Wrote " + ", ".join(map(str, files)))


if __name__ == "__main__":
    from ocr_panoptic.program import run_program

    run_program(main)
