"""Histogram of a data set: the share of each class and of ignored pixels, from a sample."""

import logging
from typing import NamedTuple

import numpy as np
from detectron2.data import DatasetCatalog, MetadataCatalog
from tabulate import tabulate

from ocr_panoptic.formats.label_map import read_labels

logger = logging.getLogger(__name__)


class ClassHistogram(NamedTuple):
    """Counts over a sample of images.

    Attributes:
        pixels: int64 [K].
        images: int64 [K], images that show the class.
        ignored: pixels.
        num_images: of the sample.
    """

    pixels: np.ndarray
    images: np.ndarray
    ignored: int
    num_images: int


def class_histogram(dataset_name: str, num_images: int) -> ClassHistogram:
    """Count the labels of at most ``num_images`` images, evenly spread over the data set.

    Raises:
        FileNotFoundError, ValueError: a label PNG of the sample is missing or broken, or has labels
            outside the map; it is named.
    """
    metadata = MetadataCatalog.get(dataset_name)
    records = [r for r in DatasetCatalog.get(dataset_name) if "sem_seg_file_name" in r]
    places = np.linspace(0, len(records) - 1, min(num_images, len(records)))
    num_classes = len(metadata.stuff_classes)
    pixels, images = (np.zeros(num_classes, np.int64) for _ in range(2))
    ignored = 0
    for place in np.unique(places.astype(int)):
        labels = read_labels(records[place]["sem_seg_file_name"], metadata.get("label_map"))
        counts = np.bincount(labels.ravel(), minlength=num_classes)
        pixels += counts[:num_classes]
        images += counts[:num_classes] > 0
        ignored += int(counts[num_classes:].sum())
    return ClassHistogram(pixels, images, ignored, len(places))


def log_class_histogram(dataset_name: str, num_images: int = 100) -> ClassHistogram:
    """Log :func:`class_histogram` as a table, the most frequent class first.

    A class that no image of the sample shows, or a large ignored share, often means a label map or
    a folder that is not the right one.

    Raises:
        as :func:`class_histogram`.
    """
    found = class_histogram(dataset_name, num_images)
    names = MetadataCatalog.get(dataset_name).stuff_classes
    total = max(1, found.pixels.sum() + found.ignored)
    order = np.argsort(-found.pixels, kind="stable")
    rows = [(names[k], 100 * found.pixels[k] / total, found.images[k]) for k in order]
    rows.append(("(ignored)", 100 * found.ignored / total, ""))
    table = tabulate(rows, headers=("class", "% of pixels", "images"), floatfmt=".2f")
    logger.debug(f"{dataset_name}, a sample of {found.num_images} images:\n{table}")
    return found
