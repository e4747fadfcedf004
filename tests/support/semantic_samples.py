"""Write and register semantic data sets, for tests of evaluation."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image


def register(
    name: str,
    folder: Path,
    truths: Mapping[str, np.ndarray | None],
    class_names: Sequence[str],
    **metadata,
) -> list[dict]:
    """
    Write true labels as PNGs and register a data set; return an evaluator's inputs.

    ``truths`` maps the name of each image file to its labels [H, W], or to None for no labels.
    """
    records = []
    for image, truth in truths.items():
        record = {"file_name": f"images/{image}"}
        if truth is not None:
            png = folder / "labels" / f"{Path(image).stem}.png"
            png.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(truth).save(png)
            record["sem_seg_file_name"] = str(png)
        records.append(record)
    DatasetCatalog.register(name, lambda: records)
    MetadataCatalog.get(name).set(
        stuff_classes=list(class_names), ignore_label=255, evaluator_type="sem_seg", **metadata
    )
    return records


def outputs_of(predictions: Sequence[np.ndarray]) -> list[dict]:
    return [{"labels": torch.from_numpy(labels.astype(np.int64))} for labels in predictions]
