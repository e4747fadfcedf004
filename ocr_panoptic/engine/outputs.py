"""The files of one predicted image, and its record, which becomes its entry in the JSON files.

Shape letters: H, W size of the image.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from detectron2.structures import Instances
from PIL import Image
from tqdm import tqdm

from ocr_panoptic.formats.coco_panoptic import id2rgb, write_panoptic_png
from ocr_panoptic.formats.files import replacing
from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.formats.pictures import Color, as_colours
from ocr_panoptic.formats.segment_runs import segment_statistics
from ocr_panoptic.modeling.inference import Size
from ocr_panoptic.visualization.overlays import draw_segments, segment_colors

from .class_names import Classes
from .inputs import Item
from .predictor import Parts, Prediction
from .rows import KeptRows, PngRows
from .tiles import coco_results

Record = dict[str, Any]
RUN = "run.json"  # what `ocr-panoptic predict` was asked, in its folder of results
ROWS_AT_ONCE = 64  # of a large image
OVERLAY_PIXELS = 16_000_000  # of a larger one an overlay shows every n-th pixel
SUFFIXES = {"panoptic": ".png", "labels": ".png", "confidence": ".png", "overlays": ".jpg"}


class Writer:
    """
    Writes the files of an image: in each of ``panoptic/``, ``labels/``, ``confidence/`` and
    ``overlays/``, as far as there are such, ``<name of the item>`` with a suffix.

    Args:
        folder: of all results.
        overlays: whether to draw the segments over the images.
        image_format, channels: of the images, INPUT.FORMAT and CHANNELS.
    """

    def __init__(
        self, folder: Path, classes: Classes, overlays: bool, image_format: str, channels: int = 3
    ):
        self.folder, self.classes = folder, classes
        self.image_format, self.channels = image_format, channels
        kinds = ["labels", "confidence"] + ["overlays"] * overlays
        self.kinds = ["panoptic", *kinds] if classes.categories else kinds

    def of(self, folder: Path) -> "Writer":
        """Return a copy that writes to another folder."""
        writer = copy(self)
        writer.folder = folder
        return writer

    def paths(self, item: Item) -> dict[str, Path]:
        """Kind of result -> its file."""
        return {kind: self.folder / kind / f"{item.name}{SUFFIXES[kind]}" for kind in self.kinds}

    def is_written(self, item: Item) -> bool:
        """Return whether all files of the image are there."""
        return all(path.is_file() for path in self.paths(item).values())

    def write(self, item: Item, image: np.ndarray, prediction: Prediction) -> Record:
        """
        Write the files of an image, each whole or not at all.

        Args:
            image: uint8 [H,W,3].

        Returns:
            its record.

        Raises:
            OSError: a file cannot be written.
        """
        paths = self.paths(item)
        write_label_png(paths["labels"], self.classes.labels[prediction.labels])
        write_label_png(paths["confidence"], eight_bits(prediction.confidence))
        if prediction.ids is not None:
            write_panoptic_png(paths["panoptic"], prediction.ids)
        if "overlays" in paths:
            write_jpeg(paths["overlays"], self.draw(image, prediction))
        return self.record(item, *image.shape[:2], self.content(prediction))

    def draw(self, image: np.ndarray, prediction: Prediction) -> np.ndarray:
        """The segments over the image, as :func:`draw_segments` gives them."""
        if prediction.ids is None:
            return draw_segments(self.rgb(image), prediction.labels, self.label_colors())
        colors = segment_colors(prediction.segments, self.classes.thing_colors, self.classes.colors)
        return draw_segments(self.rgb(image), prediction.ids, colors)

    def content(self, prediction: Prediction) -> dict[str, Any]:
        """Return the lists of the JSON files: "segments" and, of a panoptic model, "instances"."""
        if prediction.ids is None:
            count = len(self.classes.names)
            totals = label_totals(prediction.labels, prediction.confidence, count)
            return {"segments": self.label_segments(*totals)}
        segments, instances = prediction.segments, prediction.instances
        if isinstance(instances, Instances):
            segments, instances = _measured(prediction), coco_results(instances)
        return self.panoptic_content(segments, instances)

    def panoptic_content(
        self, segments: Iterable[dict[str, Any]], instances: Iterable[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return :meth:`content` of segments with "area", "bbox" and "confidence", and of
        instances in COCO's results format; both with the model's classes."""
        things, stuff = self.classes.thing_ids, self.classes.stuff_ids
        info = []
        for segment in segments:
            ids = things if segment["isthing"] else stuff
            known = {"id": segment["id"], "category_id": ids[segment["category_id"]], "iscrowd": 0}
            keys = "area", "bbox", *(["score"] if segment["isthing"] else []), "confidence"
            info.append(known | {key: segment[key] for key in keys})
        results = [{**r, "category_id": things[r["category_id"]]} for r in instances]
        return {"segments": info, "instances": results}

    def record(self, item: Item, height: int, width: int, content: dict[str, Any]) -> Record:
        """
        Args:
            content: "segments" and, of a panoptic model, "instances".
        """
        known = {"name": item.name, "file_name": item.file_name, "stamp": list(item.stamp)}
        return {**known, "height": height, "width": width, **content}

    def label_segments(self, areas: np.ndarray, confidence: np.ndarray) -> list[dict[str, Any]]:
        """Return what the JSON says of the classes in an image of a semantic model.

        Args:
            areas: pixels of each class, [K].
            confidence: sums over them, [K].
        """
        return [
            {
                "label": int(self.classes.labels[k]),
                "name": self.classes.names[k],
                "area": int(areas[k]),
                "confidence": round(float(confidence[k] / areas[k]), 4),
            }
            for k in np.flatnonzero(areas)
        ]

    def label_colors(self) -> dict[int, Color]:
        """Return the colours of the semantic classes by the model's label."""
        return dict(enumerate(map(tuple, self.classes.colors)))

    def rgb(self, image: np.ndarray) -> np.ndarray:
        """Return an image as RGB."""
        return as_colours(image, self.image_format)


def _measured(prediction: Prediction) -> Iterator[dict[str, Any]]:
    """The segments of a prediction, with "area", "bbox" and mean "confidence"."""
    statistics = segment_statistics(prediction.ids)
    flat = prediction.ids.reshape(-1)
    sums = np.bincount(flat, weights=prediction.confidence.reshape(-1))
    for segment in prediction.segments:
        if found := statistics.get(segment["id"]):  # panopticapi refuses those that are hidden
            confidence = round(float(sums[segment["id"]]) / found.area, 4)
            yield {**segment, **found._asdict(), "confidence": confidence}


def write_parts(writer: Writer, item: Item, parts: Parts) -> Record:
    """
    :meth:`.Writer.write` for an image that comes from top to bottom. Of one that is larger than
    OVERLAY_PIXELS the overlay is smaller. Ids and confidence of a panoptic model are kept until it
    is known what they stand for.
    """
    classes, paths, size, joined = writer.classes, writer.paths(item), parts.size, parts.joined
    overlay = Overlay(size, np.int32 if joined else np.uint16) if "overlays" in paths else None
    totals, instances = np.zeros((2, len(classes.labels))), []
    with ExitStack() as stack:
        enter = stack.enter_context
        new = {kind: enter(replacing(paths[kind])) for kind in paths if kind != "overlays"}
        labels_png = enter(PngRows(new["labels"], *size, classes.labels.dtype))
        confidence_png = enter(PngRows(new["confidence"], *size, np.uint8))
        kept = enter(KeptRows(writer.folder)) if joined else None
        bar = enter(tqdm(total=size[0], desc=item.name, unit="row", leave=False))
        for strip in parts.strips:
            ids = strip.ids if joined else strip.labels
            if overlay is not None:
                overlay.add(writer.rgb(strip.image), ids)
            for top in range(0, len(ids), ROWS_AT_ONCE):
                rows = slice(top, top + ROWS_AT_ONCE)
                labels, confidence = strip.labels[rows], strip.confidence[rows]
                labels_png.write(classes.labels[labels])
                if joined:
                    kept.write(ids[rows], eight_bits(confidence))
                else:
                    confidence_png.write(eight_bits(confidence))
                    totals += label_totals(labels, confidence, len(classes.labels))
                bar.update(len(labels))
            instances += strip.instances
        if joined:
            found = joined()
            scores = np.where(found.scores < 0, -1, 255 * found.scores).round().astype(np.int16)
            ids_png = enter(PngRows(new["panoptic"], *size, np.uint8, is_grey=False))
            rows = kept.read()
            for ids, confidence in zip(rows, rows):  # in turn
                ids_png.write(id2rgb(found.segment_of[ids]))
                known = scores[ids]
                confidence_png.write(np.where(known < 0, confidence, known).astype(np.uint8))
    if overlay is not None and joined:
        colors = segment_colors(found.segments, classes.thing_colors, classes.colors)
        write_jpeg(paths["overlays"], overlay.draw(colors, found.segment_of))
    elif overlay is not None:
        write_jpeg(paths["overlays"], overlay.draw(writer.label_colors()))
    if joined:
        content = writer.panoptic_content(found.segments, instances)
    else:
        content = {"segments": writer.label_segments(*totals)}
    return writer.record(item, *size, content)


def label_totals(labels: np.ndarray, confidence: np.ndarray, count: int) -> np.ndarray:
    """Count for each of ``count`` classes the pixels, and sum their confidence: [2,K]."""
    flat = labels.reshape(-1)
    sums = np.bincount(flat, weights=confidence.reshape(-1), minlength=count)
    return np.stack([np.bincount(flat, minlength=count), sums])


def eight_bits(confidence: np.ndarray) -> np.ndarray:
    """Probabilities as 0..255."""
    return (255 * confidence).round().astype(np.uint8)


class Overlay:
    """
    The labels of an image that comes from top to bottom, drawn over it: every n-th pixel, so that
    there are at most OVERLAY_PIXELS.

    Args:
        size: (H, W).
        dtype: that the labels fit.
    """

    def __init__(self, size: Size, dtype: type = np.uint16):
        self._step = math.ceil(math.sqrt(math.prod(size) / OVERLAY_PIXELS))
        shape = [math.ceil(side / self._step) for side in size]
        self._rgb = np.empty((*shape, 3), np.uint8)
        self._labels = np.empty(shape, dtype)
        self._known = self._seen = 0  # rows of it, and of the image

    def add(self, rgb: np.ndarray, labels: np.ndarray) -> None:
        """The next rows, [n,W,3] and [n,W]."""
        rows = slice(-self._seen % self._step, None, self._step), slice(None, None, self._step)
        self._seen += len(labels)
        known = self._known + len(labels[rows])
        self._rgb[self._known : known] = rgb[rows]
        self._labels[self._known : known] = labels[rows]
        self._known = known

    def draw(self, colors: Mapping[int, Color], known_as: np.ndarray | None = None) -> np.ndarray:
        """uint8 RGB, as :func:`draw_segments` gives it; the rows that are held are used up. Colours
        are those of the labels, or of ``known_as[labels]``."""
        for top in range(0, len(self._rgb), ROWS_AT_ONCE):
            rows = slice(top, top + ROWS_AT_ONCE + 1)  # an outline depends on the row below
            ids = self._labels[rows] if known_as is None else known_as[self._labels[rows]]
            drawn = draw_segments(self._rgb[rows], ids.astype(np.int32), colors)
            self._rgb[top : top + ROWS_AT_ONCE] = drawn[:ROWS_AT_ONCE]
        return self._rgb


def write_jpeg(path: Path, rgb: np.ndarray) -> None:
    with replacing(path) as temporary:
        Image.fromarray(rgb).save(temporary, format="JPEG", quality=90)


def panoptic_entries(
    number: int, item: Item, record: Record
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """Return the entries of an image of this number: of "images", of "annotations" and of COCO's
    results format."""
    size = {"height": record["height"], "width": record["width"]}
    return (
        {"id": number, "file_name": item.file_name, **size},
        {"image_id": number, "file_name": f"{item.name}.png", "segments_info": record["segments"]},
        [{"image_id": number, **result} for result in record["instances"]],
    )
