"""Augmented samples: the inputs of the network that a training makes of a few images."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.detection_utils import convert_image_to_rgb
from detectron2.structures import BitMasks
from PIL import Image, ImageDraw

from ocr_panoptic.engine.task import task_of
from ocr_panoptic.formats.labels import has_labels
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.seeding import seeded_generators
from ocr_panoptic.visualization.overlays import draw_segments, instance_color, resize_picture

IMAGES, DRAWS = 10, 4
SIDE = 440  # longer side of a picture
FIRST_INSTANCE = 256  # in the map that is drawn: above all labels

AugmentedPicture = tuple[str, str, np.ndarray]  # title, caption, uint8 [H, W, 3] RGB


def augmented_pictures(cfg: CfgNode) -> Iterator[tuple[str, list[AugmentedPicture]]]:
    """Draw IMAGES images of DATASETS.TRAIN[0], evenly spread: the name of each, and the pictures of
    the file and of DRAWS draws of the mapper, each above its labels; SEED fixes them.

    Args:
        cfg: completed, see :func:`ocr_panoptic.engine.complete_config`.
    """
    name = cfg.DATASETS.TRAIN[0]
    records = list(filter(has_labels, DatasetCatalog.get(name)))
    mapper = task_of(cfg).mapper(cfg, True)
    metadata = MetadataCatalog.get(name)
    places = np.linspace(0, len(records) - 1, min(IMAGES, len(records))).astype(int)
    for place in np.unique(places).tolist():
        record = records[place]
        image = read_picture(record["file_name"], "RGB")
        drawn: list[AugmentedPicture] = [("file", _size(image), _small(image))]
        with seeded_generators(max(cfg.SEED, 0), place):
            for draw in range(1, DRAWS + 1):
                found = mapper(record)
                picture = np.concatenate(
                    [_small(p) for p in _input_pictures(found, cfg.INPUT.FORMAT, metadata)]
                )
                drawn.append((f"draw {draw}", _size(found["image"].numpy()[0]), picture))
        yield Path(record["file_name"]).name, drawn


def _input_pictures(
    found: dict[str, Any], image_format: str, metadata: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the image of a mapped record, and over it the semantic labels, and masks and boxes of
    the instances."""
    image = found["image"].permute(1, 2, 0).numpy()
    rgb = convert_image_to_rgb(np.clip(image, 0, 255), image_format).round().astype(np.uint8)
    labels = found["sem_seg"].numpy().astype(np.int32)
    colors = {k: tuple(map(int, color)) for k, color in enumerate(metadata.stuff_colors)}
    instances = found.get("instances")
    boxes = []
    if instances is not None and len(instances):
        boxes = instances.gt_boxes.tensor.tolist()
        for number, k in enumerate(instances.gt_classes.tolist(), FIRST_INSTANCE):
            colors[number] = instance_color(tuple(metadata.thing_colors[k]), number)
        if instances.has("gt_masks") and isinstance(instances.gt_masks, BitMasks):
            for number, mask in enumerate(instances.gt_masks.tensor.numpy(), FIRST_INSTANCE):
                labels[mask] = number
    drawn = Image.fromarray(draw_segments(rgb, labels, colors, opacity=0.6))
    pen, width = ImageDraw.Draw(drawn), max(1, max(rgb.shape) // 300)
    for number, box in enumerate(boxes, FIRST_INSTANCE):
        pen.rectangle(box, outline=colors[number], width=width)
    return rgb, np.asarray(drawn)


def _size(picture: np.ndarray) -> str:
    return f"{picture.shape[1]} x {picture.shape[0]}"


def _small(picture: np.ndarray) -> np.ndarray:
    scale = min(1.0, SIDE / max(picture.shape[:2]))
    height, width = (max(1, round(side * scale)) for side in picture.shape[:2])
    return resize_picture(picture, height, width, smooth=True)
