"""CamVid as a semantic and as a panoptic data set.

CamVid has no instances. Those of the panoptic data set are approximated: each connected component
of a thing class is one. Things that touch or occlude each other thus are one instance, and a thing
that a pole divides is two. A number from these data measures that approximation, too.

Shape letters: H, W size of the image.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from ..files import write_json
from ..label_png import read_label_png
from ..panoptic_png import write_panoptic_png
from .label_space import derived_colors
from .parallel import map_with_progress
from .pictures import read_size
from .prepare import RawSplit, prepare_panoptic
from .segments import segment_statistics
from .semantic_manifest import SemanticSplit
from .semantic_prepare import prepare_semantic
from .semantic_records import LabelledFolder

# In the order of the labels; 11 is void.
CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence"),
    *("car", "pedestrian", "bicyclist"),
)
VOID = 11
THINGS = ("car", "pedestrian", "bicyclist")
# Smaller components are distant things, or slivers behind poles: one crowd for each class.
SMALLEST_INSTANCE = 100 / (360 * 480)  # of the image's area


def prepare_camvid(source: Path, root: Path, workers: int | None = None) -> list[Path]:
    """Write the data sets ``camvid_<split>`` and ``camvid_panoptic_<split>``.

    Args:
        source: folder with ``train``, ``val`` and perhaps ``test``, each with ``images`` and
            ``labels``; or, as the public copy has it, with ``train`` and ``trainannot``, ...
        root: ``$DETECTRON2_DATASETS``.
        workers: processes, see :func:`map_with_progress`.

    Returns:
        the manifests of the semantic and the panoptic data set.

    Raises:
        FileNotFoundError, DataFaults: a folder or a file is missing or broken, or there are other
            labels than 0..11. Then no manifest has been written.
    """
    splits = find_splits(source)
    class_file = root / "camvid/classes.json"
    write_json(class_file, {"classes": list(CLASSES), "ignore": VOID}, indent=1)
    semantic = prepare_semantic("camvid", class_file, splits, class_file.parent, workers)
    output = root / "camvid_panoptic"
    raw = {
        name: write_panoptic_split(split, output / "raw" / name, workers)
        for name, split in splits.items()
    }
    return [semantic, prepare_panoptic("camvid_panoptic", raw, output, workers)]


def find_splits(source: Path) -> dict[str, SemanticSplit]:
    """The folders of each split, whichever of the two layouts they have.

    Raises:
        FileNotFoundError: neither is there for train or val.
    """
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
            raise FileNotFoundError(
                f"{source}: has neither {name}/images and {name}/labels nor {name} and "
                f"{name}annot. Give the folder that holds CamVid's {name}."
            )
    return splits


def write_panoptic_split(split: SemanticSplit, output: Path, workers: int | None) -> RawSplit:
    """Write ``output/panoptic/*.png`` and ``output/panoptic.json`` in COCO panoptic format."""
    pairs = LabelledFolder(split.images, split.labels).pairs()
    write = partial(_write_image, images=split.images, folder=output / "panoptic")
    (output / "panoptic").mkdir(parents=True, exist_ok=True)
    entries = map_with_progress(
        write, list(enumerate(pairs, 1)), f"panoptic {output.name}", workers
    )
    colors = derived_colors(len(CLASSES))
    content = {
        "images": [image for image, _ in entries],
        "annotations": [annotation for _, annotation in entries],
        "categories": [
            {"id": label + 1, "name": name, "isthing": int(name in THINGS), "color": list(color)}
            for label, (name, color) in enumerate(zip(CLASSES, colors, strict=True))
        ],
    }
    write_json(output / "panoptic.json", content)
    return RawSplit(split.images, output / "panoptic.json", output / "panoptic")


def _write_image(
    numbered: tuple[int, tuple[Path, Path]], images: Path, folder: Path
) -> tuple[dict, dict]:
    number, (image, label_png) = numbered
    ids, segments = instances_from_labels(read_label_png(label_png))
    name = f"{image.relative_to(images).with_suffix('').as_posix().replace('/', '_')}.png"
    write_panoptic_png(folder / name, ids)
    width, height = read_size(image)[:2]
    return (
        {
            "id": number,
            "file_name": image.relative_to(images).as_posix(),
            "height": height,
            "width": width,
        },
        {"image_id": number, "file_name": name, "segments_info": segments},
    )


def instances_from_labels(labels: np.ndarray) -> tuple[np.ndarray, list[dict]]:
    """Segments of CamVid's labels: one for each class of stuff, one for each 8-connected component
    of a thing that has at least ``SMALLEST_INSTANCE`` of the area, and one crowd for the others.

    Args:
        labels: uint8 [H, W], 0..11.

    Returns:
        segment ids int32 [H, W] (0 is void), segments_info in COCO panoptic format; the category
        ids are label + 1.
    """
    import cv2

    ids = np.zeros(labels.shape, np.int32)
    categories: list[tuple[int, int]] = []  # of segment 1, 2, ...: category id, iscrowd

    def add(mask: np.ndarray, label: int, iscrowd: int = 0) -> None:
        if mask.any():
            categories.append((label + 1, iscrowd))
            ids[mask] = len(categories)

    for label, name in enumerate(CLASSES):
        mask = labels == label
        if name not in THINGS:
            add(mask, label)
            continue
        _, parts, statistics, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8))
        areas = statistics[:, cv2.CC_STAT_AREA]
        small = np.flatnonzero(areas < SMALLEST_INSTANCE * labels.size)
        for part in range(1, len(areas)):  # 0 is what the mask leaves out
            if part not in small:
                add(parts == part, label)
        add(mask & np.isin(parts, small), label, iscrowd=1)
    segments = [
        {
            "id": segment_id,
            "category_id": categories[segment_id - 1][0],
            "iscrowd": categories[segment_id - 1][1],
            "area": found.area,
            "bbox": found.bbox,
        }
        for segment_id, found in segment_statistics(ids).items()
    ]
    return ids, segments
