#!/usr/bin/env python
"""
Run a model that ocr-panoptic export has written.

This file can be copied beside the model: it needs only onnxruntime, NumPy and Pillow, not PyTorch,
Detectron2 or the rest of the package.

    python run_onnx.py model.onnx --input IMAGE|FOLDER ... --output FOLDER [--overlays]

writes the files of ocr-panoptic predict except coco.json and coco/: labels/*.png (classes 0..K-1),
confidence/*.png (probability of the assigned class or instance, 0..255), and labels.json (semantic
model) or panoptic/*.png and panoptic.json in COCO panoptic format (panoptic model). In Python:

    model = Model("model.onnx")
    prediction = model(read_image("street.jpg"))
    prediction["labels"], model.classes[0]["name"]

Shape shorthand: H W size of an image, K classes, h w feature size.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

METADATA_KEY = "ocr_panoptic"
FORMAT = 3
"""Version of the description in the metadata; other versions are refused."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
SEGMENTS = tuple(f"segment_{column}" for column in ("isthing", "classes", "scores", "boxes"))
"""Names of the outputs that describe the segments."""
Prediction = dict[str, Any]


class Model:
    """
    A model loaded from an ONNX file.

    Args:
        threads: number of CPU threads; 0 for one thread per core.
        providers: onnxruntime's execution providers, the preferred first; by default all available.

    Attributes:
        classes: "name" and "color" of the semantic labels 0..K-1.
    """

    def __init__(
        self, path: str | os.PathLike, *, threads: int = 0, providers: Sequence[str] | None = None
    ):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = _session(path, options, providers)
        text = self.session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
        if text is None:
            raise ValueError(
                f"{path} has no description of its classes. This program runs only models from "
                "ocr-panoptic export"
            )
        self.description = json.loads(text)
        if self.description["format"] != FORMAT:
            raise ValueError(
                f"{path} has format {self.description['format']}, but this program reads {FORMAT}. "
                "Use the run_onnx.py of the version that wrote the file"
            )
        self.classes = self.description["classes"]
        self._outputs = [output.name for output in self.session.get_outputs()]
        self.is_panoptic = "ids" in self._outputs

    def __call__(self, image: np.ndarray) -> Prediction:
        """
        Return the prediction for an image.

        Args:
            image: image, uint8 [H, W, 3] RGB.

        Returns:
            a dict with "labels", int32 [H, W]; "confidences", float32 [H, W]; and "logits", float32
            [K, h, w], at the network's resolution. For a panoptic model, the dict also has "ids",
            int32 [H, W], 0 outside all segments, and "segments", a list of dicts. Each segment's
            dict has "id", "isthing" and "category_id" (thing class, or semantic label of stuff),
            and for a thing "score" and "box" (x0, y0, x1, y1). All detections, before the merge,
            are in "boxes", "scores", "classes" and "masks"

        Raises:
            ValueError: if onnxruntime cannot run the model on the image.
        """
        try:
            values = self.session.run(None, {"image": np.ascontiguousarray(image)})
        except Exception as error:  # onnxruntime's exceptions have no common class
            raise ValueError(
                f"onnxruntime cannot run the model on an image of {image.shape[1]}x"
                f"{image.shape[0]} pixels: {str(error).splitlines()[0]}"
            ) from error
        prediction = dict(zip(self._outputs, values))
        if self.is_panoptic:
            table = [prediction.pop(name).tolist() for name in SEGMENTS]
            prediction["segments"] = [
                {"id": id_, "isthing": isthing, "category_id": class_}
                | ({"score": score, "box": box} if isthing else {})
                for id_, (isthing, class_, score, box) in enumerate(zip(*table), start=1)
            ]
        return prediction


def read_metadata(path: str | os.PathLike) -> dict[str, str]:
    """Return the metadata of an ONNX file."""
    options = onnxruntime.SessionOptions()  # quick, since the network is not prepared to run
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _session(path, options, ["CPUExecutionProvider"]).get_modelmeta().custom_metadata_map


def _session(
    path: str | os.PathLike,
    options: onnxruntime.SessionOptions,
    providers: Sequence[str] | None,
) -> onnxruntime.InferenceSession:
    try:
        return onnxruntime.InferenceSession(
            os.fspath(path), options, providers or onnxruntime.get_available_providers()
        )
    except Exception as error:  # onnxruntime's exceptions have no common class
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} cannot be read as an ONNX model: {reason}") from error


def read_image(path: str | os.PathLike) -> np.ndarray:
    """
    Return an image as uint8 [H, W, 3] RGB, rotated according to the file's EXIF data.

    16-bit values are reduced to their upper 8 bits. ValueError is raised if the file cannot be read
    as an image.
    """
    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)
            if image.mode == "F":
                raise ValueError("its pixels are floats, whose range is unknown")
            if image.mode.startswith("I"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot be read as an image: {error}") from error


def assigned_confidence(prediction: Prediction) -> np.ndarray:
    """
    Return the confidence of each pixel, float32 [H, W].

    A pixel of an instance has the instance's score; any other pixel has the probability of its
    label. The void pixels of a panoptic map have 0.
    """
    if "ids" not in prediction:
        return prediction["confidences"]
    # Stuff gets -1, which is replaced by the probability of the label.
    of_segment = np.full(len(prediction["segments"]) + 1, -1, np.float32)
    of_segment[0] = 0
    for segment in prediction["segments"]:
        if segment["isthing"]:
            of_segment[segment["id"]] = segment["score"]
    assigned = of_segment[prediction["ids"]]
    return np.where(assigned < 0, prediction["confidences"], assigned)


class Input(NamedTuple):
    """An image to run the model on."""

    name: str  # name of the result files, without their suffixes
    file_name: str  # path relative to the common folder of all inputs
    path: Path


def find_images(entries: Sequence[str]) -> list[Input]:
    """
    Return the given image files and the images in the given folders, each image once.

    Subfolders are searched too. Hidden files, hidden folders and symbolic links to folders are left
    out. FileNotFoundError is raised if an entry does not exist or is a folder without images.
    """
    found: dict[Path, None] = {}
    folders = []
    for entry in entries:
        path = Path(os.path.abspath(entry))
        files = sorted(_images_below(path)) if path.is_dir() else [path]
        if not files:
            raise FileNotFoundError(f"--input {entry}: no images in this folder")
        if not files[0].is_file():
            raise FileNotFoundError(f"--input {entry}: no such file or folder")
        found.update(dict.fromkeys(files))
        folders.append(path if path.is_dir() else path.parent)
    root = os.path.commonpath(folders)
    file_names = [file.relative_to(root).as_posix() for file in found]
    return [Input(*names) for names in zip(_unique_names(file_names), file_names, found)]


def _images_below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = (name for name in folders if name[0] != ".")
        for name in names:
            path = Path(root, name)
            if name[0] != "." and path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
                yield path


def _unique_names(names: Sequence[str]) -> list[str]:
    """
    Return the names without their suffixes; names that would become equal keep their suffixes.

    For example, "a.jpg" and "a.png" keep their suffixes, because both would become "a". An image
    "a.jpg.bmp" then keeps its suffix, too, because the name "a.jpg" is taken.
    """
    found, before = [name.removesuffix(Path(name).suffix) for name in names], None
    while found != before:
        counts, before = Counter(map(str.lower, found)), found
        found = [n if counts[f.lower()] > 1 else f for n, f in zip(names, found)]
    return found


class Results:
    """A writer of predictions to a new or empty folder."""

    def __init__(self, folder: Path, model: Model, overlays: bool):
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise ValueError(f"--output {folder} is not a new or empty folder. Name another folder")
        self._folder, self._model, self._overlays = folder, model, overlays
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def add(self, source: Input, image: np.ndarray, prediction: Prediction) -> None:
        """Write the result files of an image."""
        labels, name = prediction["labels"], source.name
        few = len(self._model.classes) <= 256
        self._save(f"labels/{name}.png", labels.astype(np.uint8 if few else np.uint16))
        confidence = assigned_confidence(prediction)
        self._save(f"confidence/{name}.png", (255 * confidence).round().astype(np.uint8))
        height, width = labels.shape
        entry = {"file_name": source.file_name, "height": height, "width": width}
        if self._model.is_panoptic:
            ids, number = prediction["ids"], len(self._images) + 1
            colors = np.stack([ids & 255, ids >> 8 & 255, ids >> 16 & 255], axis=-1)
            self._save(f"panoptic/{name}.png", colors.astype(np.uint8))
            self._images.append({"id": number, **entry})
            info = list(self._segments(prediction, confidence))
            annotation = {"image_id": number, "file_name": f"{name}.png", "segments_info": info}
            self._annotations.append(annotation)
        else:
            segments = list(self._classes(labels, confidence))
            self._images.append({**entry, "labels": f"{name}.png", "segments": segments})
        if self._overlays:
            self._save(f"overlays/{name}.jpg", overlay(image, prediction, self._model))

    def finish(self) -> None:
        """Write ``panoptic.json`` for a panoptic model, ``labels.json`` for a semantic model."""
        if self._model.is_panoptic:
            file = self._folder / "panoptic.json"
            categories = self._model.description["categories"]
            content = {"annotations": self._annotations, "categories": categories}
        else:
            file = self._folder / "labels.json"
            classes = [{"label": k, **known} for k, known in enumerate(self._model.classes)]
            content = {"classes": classes}
        self._folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"images": self._images, **content}))

    def _classes(self, labels: np.ndarray, confidence: np.ndarray) -> Iterator[dict[str, Any]]:
        areas = np.bincount(labels.ravel())
        sums = np.bincount(labels.ravel(), weights=confidence.ravel())
        for label in np.flatnonzero(areas).tolist():
            yield {
                "label": label,
                "name": self._model.classes[label]["name"],
                "area": int(areas[label]),
                "confidence": round(float(sums[label] / areas[label]), 4),
            }

    def _segments(self, prediction: Prediction, confidence: np.ndarray) -> Iterator[dict[str, Any]]:
        ids = prediction["ids"]
        for segment in prediction["segments"]:
            rows, columns = np.nonzero(ids == segment["id"])
            if not len(rows):  # a hidden segment; panopticapi refuses segments without pixels
                continue
            kind = "thing_ids" if segment["isthing"] else "stuff_ids"
            (top, bottom), (left, right) = ((p.min(), p.max() + 1) for p in (rows, columns))
            yield {
                "id": segment["id"],
                "category_id": self._model.description[kind][segment["category_id"]],
                "iscrowd": 0,
                "area": len(rows),
                "bbox": [int(v) for v in (left, top, right - left, bottom - top)],
                **({"score": segment["score"]} if segment["isthing"] else {}),
                "confidence": round(float(confidence[rows, columns].mean(dtype=float)), 4),
            }

    def _save(self, name: str, pixels: np.ndarray) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


def overlay(image: np.ndarray, prediction: Prediction, model: Model) -> np.ndarray:
    """Return the image blended with class colours, with white segment outlines, uint8 [H, W, 3]."""
    ids: np.ndarray = prediction["ids" if "ids" in prediction else "labels"]
    if model.is_panoptic:
        colors: np.ndarray = np.full((len(prediction["segments"]) + 1, 3), 128)
        for segment in prediction["segments"]:
            classes = model.description["things"] if segment["isthing"] else model.classes
            colors[segment["id"]] = classes[segment["category_id"]]["color"]
    else:
        colors = np.array([entry["color"] for entry in model.classes])
    picture = (0.4 * image + 0.6 * colors[ids]).round().astype(np.uint8)
    picture[:, :-1][ids[:, :-1] != ids[:, 1:]] = 255
    picture[:-1][ids[:-1] != ids[1:]] = 255
    return picture


def run(arguments: argparse.Namespace) -> int:
    """Run the model on all images; return the exit status: 1 if any image failed, else 0."""
    images = find_images(arguments.input)
    model = Model(arguments.model, threads=arguments.threads)
    results = Results(arguments.output, model, arguments.overlays)
    failed = []
    for number, source in enumerate(images, start=1):
        try:
            image = read_image(source.path)
            results.add(source, image, model(image))
        except ValueError as error:
            failed.append(f"{source.path}: {error}")
            continue
        print(f"{number}/{len(images)} {source.path}", flush=True)
    results.finish()
    for message in failed:
        print(f"error: {message}", file=sys.stderr)
    done = len(images) - len(failed)
    print(f"Predictions for {done} of {len(images)} images are in {arguments.output}")
    return 1 if failed else 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="file written by ocr-panoptic export")
    parser.add_argument("--input", required=True, nargs="+", help="images, or folders of images")
    parser.add_argument("--output", required=True, type=Path, help="new folder for the results")
    parser.add_argument("--overlays", action="store_true", help="also draw segments over images")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 for all cores")
    try:
        return run(parser.parse_args(argv))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
