"""Histogram of a data set: the share of each class and of ignored pixels, from a sample."""

import logging

import numpy as np
from detectron2.data import DatasetCatalog, MetadataCatalog
from tabulate import tabulate

from ocr_panoptic.formats.labels import read_labels

logger = logging.getLogger(__name__)


def log_class_histogram(dataset_name: str, num_images: int = 100) -> None:
    """Log how many pixels and images show each class, the most frequent one first, of at most
    ``num_images`` images, evenly spread over the data set.

    A class that no image of the sample shows, or a large ignored share, often means a label map or
    a folder that is not the right one.

    Raises:
        FileNotFoundError, ValueError: a label PNG of the sample is missing or broken, or has labels
            outside the map; it is named.
    """
    metadata = MetadataCatalog.get(dataset_name)
    records = [r for r in DatasetCatalog.get(dataset_name) if "sem_seg_file_name" in r]
    places = np.linspace(0, len(records) - 1, min(num_images, len(records)))
    num_classes = len(metadata.stuff_classes)
    pixels, images = (np.zeros(num_classes + 1, np.int64) for _ in range(2))  # ignored ones last
    for place in np.unique(places.astype(int)):
        labels = read_labels(records[place]["sem_seg_file_name"], metadata.get("label_map"))
        counts = np.bincount(labels.ravel(), minlength=num_classes)
        counts = np.append(counts[:num_classes], counts[num_classes:].sum())
        pixels += counts
        images += counts > 0
    share = 100 * pixels / max(1, pixels.sum())
    order = np.argsort(-pixels[:-1], kind="stable")
    rows = [(metadata.stuff_classes[k], share[k], images[k]) for k in order]
    rows.append(("(ignored)", share[-1], ""))
    table = tabulate(rows, headers=("class", "% of pixels", "images"), floatfmt=".2f")
    logger.debug(f"{dataset_name}, a sample of {len(places)} images:\n{table}")
