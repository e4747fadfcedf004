"""
The result of a prediction for one image.

Shape letters: H, W size of the image, C channels, K semantic classes, M instances.
"""

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from detectron2.data import Metadata
from detectron2.structures import Instances
from PIL import Image
from pycocotools import mask as run_lengths

from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.predictions import raw_labels
from ocr_panoptic.formats.coco_panoptic import categories_of, ids_by_class, write_panoptic_png
from ocr_panoptic.formats.files import path_argument, replacing, write_json
from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.formats.pictures import as_colours
from ocr_panoptic.formats.segment_runs import SegmentRuns

from .overlays import draw_segments, segment_colors
from .sources import Item
from .tiles import coco_results

NOTEBOOK = 1024  # longer side of a picture in a notebook, pixels
OVERLAY_PIXELS = 16_000_000  # a JPEG of a larger image shows every n-th pixel
SUFFIXES = {"overlays": ".jpg", "coco": ".json"}  # other kinds of files end in .png
LABELS = ("train", "dataset")  # what label PNGs may contain


@dataclass(frozen=True)
class Classes:
    """
    The classes that a model's results contain.

    Attributes:
        names, colors: names and colours of the K semantic classes.
        labels: value that stands for each class in label PNGs, uint8 or uint16 [K].
        categories: categories in COCO panoptic format; empty for a semantic model.
        thing_ids, stuff_ids: category ids of the data set, in the order of the model's thing and
            stuff classes. The first stuff class, "things", is not a category.
        thing_colors: colours of the model's thing classes.
    """

    names: list[str]
    colors: list
    labels: np.ndarray
    categories: list[dict]
    thing_ids: list[int]
    stuff_ids: list[int]
    thing_colors: list

    @property
    def thing_names(self) -> list[str]:
        names = {category["id"]: category["name"] for category in self.categories}
        return [names[number] for number in self.thing_ids]


def classes_of(metadata: Metadata, kind: str) -> Classes:
    """
    Return the classes of a semantic or panoptic data set.

    Args:
        kind: kind of values in label PNGs: "train" for class indices from 0, "dataset" for the
            labels in the data set's files (in a panoptic data set: category ids of stuff, and 0
            for things).
    """
    labels: np.ndarray
    names = list(metadata.stuff_classes)
    things, stuff = (ids_by_class(metadata, kind) for kind in ("thing", "stuff"))
    if not things or metadata.get("evaluator_type") == "sem_seg":
        if kind == "train":
            labels = np.arange(len(names), dtype=np.uint8)
        else:
            labels = raw_labels(names, metadata.get("label_map"))
        return Classes(names, metadata.stuff_colors, labels, [], [], [], [])
    labels = np.array(range(len(names)) if kind == "train" else stuff)
    if labels.min() < 0:
        raise UserError(
            f"--labels {kind} needs the label 0 for things, but in {metadata.name} 0 is a "
            "category id. Use --labels train."
        )
    if labels.max() > np.iinfo(np.uint16).max:
        raise UserError(
            f"--labels {kind} needs category ids of at most 65535, but {metadata.name} has "
            f"{labels.max()}. Use --labels train."
        )
    labels = labels.astype(np.uint8 if labels.max() < 256 else np.uint16)
    categories, thing_colors = categories_of(metadata), metadata.thing_colors
    return Classes(names, metadata.stuff_colors, labels, categories, things, stuff, thing_colors)


class Result:
    """
    The prediction for an image.

    Attributes:
        name: name of the result files without suffix, such as a path below the input folder.
        image: input image, RGB uint8 [H,W,3], or [H,W,C] if the data have other channels.
        labels: semantic classes 0..K-1, int64 [H,W]; 0 is "things" for a panoptic model.
        confidence: probability of each pixel's label, or score of its instance, float32 [H,W] in
            0..1; 0 for the void pixels of a panoptic model.
        ids: panoptic ids, int32 [H,W], 0 is void; None for a semantic model.
        instances: all detections as Detectron2's Instances on the CPU: ``pred_boxes`` float32 [M,4]
            as x0, y0, x1, y1, ``scores`` float32 [M], ``pred_classes`` int64 [M] and ``pred_masks``
            bool [M,H,W]; None for a semantic model, and for an image that was predicted in tiles
            (then use :meth:`to_coco`).
        classes: names of the K semantic classes.
        things: names of the thing classes.
    """

    def __init__(
        self,
        item: Item,
        image: np.ndarray,
        classes: Classes,
        labels: np.ndarray,
        confidence: np.ndarray,
        ids: np.ndarray | None = None,
        segments: Sequence[dict[str, Any]] = (),
        instances: Instances | list[dict[str, Any]] | None = None,
    ):
        """
        Make a result from a model's outputs.

        Args:
            confidence: probability of each pixel's semantic label (not the score of its instance).
            segments: dicts of "id", "isthing", "category_id" (the model's class index) and, for
                things, "score".
            instances: detections as Detectron2's Instances, or in COCO's results format with the
                model's class indices.
        """
        self.name, self.image = item.name, image
        self._item, self._classes, self._segments = item, classes, segments
        self._instances = instances
        if ids is not None:
            scores = np.full(max((s["id"] for s in segments), default=0) + 1, -1, np.float32)
            scores[0] = 0
            for segment in segments:
                scores[segment["id"]] = segment.get("score", -1)
            confidence = np.where(scores[ids] < 0, confidence, scores[ids])
        self.labels, self.confidence, self.ids = labels, confidence, ids
        self.instances = instances if isinstance(instances, Instances) else None
        self.classes: list[str] = list(classes.names)
        self.things: list[str] = classes.thing_names

    def __repr__(self) -> str:
        height, width = self.labels.shape
        names = ", ".join(dict.fromkeys(segment["name"] for segment in self.segments))
        return f"<Result {self.name}: {width}x{height}, {len(self.segments)} segments: {names}>"

    @cached_property
    def segments(self) -> list[dict[str, Any]]:
        """
        Return a dict for each segment in the image.

        Each dict has "name", "area" (pixels) and "confidence" (mean over the pixels). Segments of a
        panoptic model also have "id" (as in ``ids``), "isthing", "category_id" (of the data set),
        "iscrowd", "bbox" (x, y, width, height) and, for things, "score". The segments of a semantic
        model, one for each class in the image, also have "label".
        """
        ids = self.ids
        return list(self._label_segments() if ids is None else self._panoptic_segments(ids))

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of objects of each thing class; {} for a semantic model."""
        found = [segment["name"] for segment in self.segments if segment.get("isthing")]
        return {name: found.count(name) for name in self.things}

    def _label_segments(self) -> Iterator[dict[str, Any]]:
        areas, sums = self._totals(self.labels)
        for k in np.flatnonzero(areas):
            class_ = {"label": int(self._classes.labels[k]), "name": self.classes[k]}
            confidence = round(float(sums[k] / areas[k]), 4)
            yield {**class_, "area": int(areas[k]), "confidence": confidence}

    def _panoptic_segments(self, panoptic_ids: np.ndarray) -> Iterator[dict[str, Any]]:
        names = {category["id"]: category["name"] for category in self._classes.categories}
        _, sums = self._totals(panoptic_ids)
        for segment in self._segments:
            number, isthing = segment["id"], segment["isthing"]
            # Segments without visible pixels are left out; panopticapi refuses them.
            if statistics := self._runs.statistics.get(number):
                ids = self._classes.thing_ids if isthing else self._classes.stuff_ids
                category = ids[segment["category_id"]]
                yield {
                    **{"name": names[category], "isthing": isthing, "id": number},
                    **{"category_id": category, "iscrowd": 0, **statistics._asdict()},
                    **({"score": segment["score"]} if isthing else {}),
                    "confidence": round(float(sums[number]) / statistics.area, 4),
                }

    def _totals(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the pixel count and the summed confidence of each label or id in ``numbers``."""
        flat = numbers.reshape(-1)
        return np.bincount(flat), np.bincount(flat, weights=self.confidence.reshape(-1))

    @cached_property
    def _runs(self) -> SegmentRuns:
        assert self.ids is not None
        return SegmentRuns(self.ids)

    def draw(self) -> Image.Image:
        """Return an RGB picture of W x H pixels: the image in grey under coloured segments."""
        return self._drawn(1)

    def _drawn(self, step: int) -> Image.Image:
        every = slice(None, None, step), slice(None, None, step)
        image, ids = as_colours(self.image[every], "RGB"), self.ids
        if ids is None:
            ids, colors = self.labels, dict(enumerate(map(tuple, self._classes.colors)))
        else:
            colors = segment_colors(
                self._segments, self._classes.thing_colors, self._classes.colors
            )
        return Image.fromarray(draw_segments(image, ids[every], colors))

    def _repr_png_(self) -> bytes:
        picture, buffer = self.draw(), io.BytesIO()
        picture.thumbnail((NOTEBOOK, NOTEBOOK))
        picture.save(buffer, format="PNG")
        return buffer.getvalue()

    def to_coco(self, image_id: int = 1) -> dict[str, Any]:
        """
        Return the prediction in COCO's formats.

        Returns:
            a dict with "images", "annotations" and "categories". For a panoptic model, these follow
            COCO's panoptic format, with each segment's run lengths as "segmentation", and the dict
            also has "instances" in COCO's results format. For a semantic model, each class has an
            annotation with run lengths, as in COCO-Stuff; category ids are the values in label
            PNGs.
        """
        height, width = self.labels.shape
        image = {"id": image_id, "file_name": self._item.file_name}
        content: dict[str, Any] = {"images": [{**image, "height": height, "width": width}]}
        if self.ids is None:
            categories = [
                {"id": int(label), "name": name, "supercategory": "stuff"}
                for label, name in zip(self._classes.labels, self.classes, strict=True)
            ]
            annotations = list(self._stuff(image_id))
            return {**content, "annotations": annotations, "categories": categories}
        info = [
            {key: value for key, value in segment.items() if key not in ("name", "isthing")}
            | {"segmentation": self._runs.run_lengths(segment["id"])}
            for segment in self.segments
        ]
        annotation = {"image_id": image_id, "file_name": f"{self.name}.png", "segments_info": info}
        content |= {"annotations": [annotation], "categories": self._classes.categories}
        results, ids = self._instances or [], self._classes.thing_ids
        if isinstance(results, Instances):
            results = coco_results(results)
        instances = [
            {"image_id": image_id, **r, "category_id": ids[r["category_id"]]} for r in results
        ]
        return {**content, "instances": instances}

    def _stuff(self, image_id: int) -> Iterator[dict[str, Any]]:
        present = np.flatnonzero(np.bincount(self.labels.reshape(-1)))
        for number, (k, segment) in enumerate(zip(present, self.segments, strict=True), 1):
            mask = run_lengths.encode(np.asfortranarray(self.labels == k, np.uint8))
            yield {
                "id": number,
                "image_id": image_id,
                "category_id": segment["label"],
                "segmentation": {**mask, "counts": mask["counts"].decode()},
                "area": segment["area"],
                "bbox": run_lengths.toBbox(mask).tolist(),
                "iscrowd": 0,
                "confidence": segment["confidence"],
            }

    def save(self, folder: str | PathLike, overlays: bool = True) -> dict[str, Path]:
        """
        Write the same files as ``ocr-panoptic predict``, each atomically.

        Args:
            folder: folder for the results, created if needed; it may hold other images' results.
            overlays: whether to also draw the segments over the image.

        Returns:
            paths of the written files, with the keys "labels", "confidence", "coco" (the result of
            :meth:`to_coco`) and, if written, "panoptic" and "overlays"

        Raises:
            OSError: a file cannot be written.
        """
        folder = Path(path_argument("folder", folder))
        files = files_of(folder, self.name, self.ids is not None, overlays)
        write_label_png(files["labels"], self._classes.labels[self.labels])
        write_label_png(files["confidence"], (255 * self.confidence).round().astype(np.uint8))
        if self.ids is not None:
            write_panoptic_png(files["panoptic"], self.ids)
        if overlays:
            step = math.ceil(math.sqrt(self.labels.size / OVERLAY_PIXELS))
            with replacing(files["overlays"]) as temporary:
                self._drawn(step).save(temporary, format="JPEG", quality=90)
        write_json(files["coco"], self.to_coco())
        return files


def files_of(folder: Path, name: str, is_panoptic: bool, overlays: bool) -> dict[str, Path]:
    """Return the paths of the files that :meth:`Result.save` writes for an image."""
    kinds = ["panoptic"] * is_panoptic + ["labels", "confidence"] + ["overlays"] * overlays
    kinds.append("coco")
    return {kind: folder / kind / f"{name}{SUFFIXES.get(kind, '.png')}" for kind in kinds}
