#!/usr/bin/env python
"""
Run a model that ocr-panoptic export has written. Needs onnxruntime, NumPy and Pillow, and neither
PyTorch nor Detectron2 nor the rest of this package: copy this file beside the model.

    python run_onnx.py model.onnx --input IMAGE|FOLDER ... --output FOLDER [--overlays]

writes what ocr-panoptic predict does, but for coco.json and coco/: labels/*.png (classes 0..K-1),
confidence/*.png (the probability of what a pixel is assigned to, 0..255), labels.json of a semantic
model, and panoptic/*.png and panoptic.json in COCO panoptic format of a panoptic one. In Python:

    model = Model("model.onnx")
    prediction = model(read_image("street.jpg"))
    prediction["labels"], model.classes[0]["name"]

Shape shorthand: H W size of an image, K classes, h w feature size.
"""

import argparse
import errno
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

METADATA_KEY = "ocr_panoptic"
FORMAT = 3
"""Of the description in the metadata; a newer one cannot be read."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
FORMATS = {".png": "PNG", ".jpg": "JPEG"}
SEGMENTS = tuple(f"segment_{column}" for column in ("isthing", "classes", "scores", "boxes"))
NAMES = ("image", "labels", "confidences")
"""Of inputs and outputs."""
PANOPTIC_NAMES = ("ids", *SEGMENTS)
Prediction = dict[str, Any]


class Model:
    """
    A model in an ONNX file.

    Args:
        path: of the file.
        threads: of the CPU; 0: as many as it has cores.
        providers: of onnxruntime, the best first; those that this machine has, by default.

    Attributes:
        description: of the model, from the file's metadata.
        classes: "name" and "color" of the semantic labels 0..K-1.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no ONNX file, or none as ocr-panoptic export writes them.
    """

    def __init__(
        self, path: str | os.PathLike, *, threads: int = 0, providers: Sequence[str] | None = None
    ):
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path}: there is no such model")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            self.session = onnxruntime.InferenceSession(
                os.fspath(path), options, providers or onnxruntime.get_available_providers()
            )
        except Exception as error:  # onnxruntime's have no common class of their own
            raise ValueError(
                f"{path} cannot be read as an ONNX model: {_why_unreadable(path, error)}"
            ) from error
        text = self.session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
        self.description = _parse_description(path, text)
        self.classes = self.description["classes"]
        self._outputs = [output.name for output in self.session.get_outputs()]
        self.is_panoptic = "ids" in self._outputs
        names = [value.name for value in self.session.get_inputs()] + self._outputs
        needed = NAMES + PANOPTIC_NAMES * self.is_panoptic
        if missing := [name for name in needed if name not in names]:
            raise ValueError(
                f"{path} has no {', '.join(missing)} among its inputs and outputs "
                f"({', '.join(names)}): it was changed after ocr-panoptic export; export it again"
            )

    def __call__(self, image: np.ndarray) -> Prediction:
        """
        Return "labels", int32 [H, W]; "confidences", float32 [H, W]; "logits", float32 [K, h, w],
        at the resolution of the network. Of a panoptic model also "ids", int32 [H, W], 0 where no
        segment is, and "segments", of each "id", "isthing", "category_id" (the class, among things
        or among labels), and of a thing "score" and "box" (x0, y0, x1, y1).

        Args:
            image: uint8 [H, W, 3] RGB

        Raises:
            ValueError: onnxruntime refuses the image, for want of memory most often.
        """
        try:
            values = self.session.run(None, {"image": np.ascontiguousarray(image)})
        except Exception as error:  # onnxruntime's have no common class of their own
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


def _why_unreadable(path: str | os.PathLike, error: Exception) -> str:
    said = str(error).splitlines()[0]
    said = said.partition(f"Load model from {os.fspath(path)} failed:")[2] or said
    if newer := re.search(r"(Opset|IR version):? (\d+)", said):
        return (
            f"it has {newer[1]} {newer[2]}, newer than onnxruntime {onnxruntime.__version__}; "
            "install a newer one: pip install -U onnxruntime"
        )
    return f"{said} Is it whole? Copy or export it again"


def _parse_description(path: str | os.PathLike, text: str | None) -> dict[str, Any]:
    if text is None:
        raise ValueError(
            f"{path} does not say what its classes are; this program runs models "
            "that ocr-panoptic export has written"
        )
    try:
        description = json.loads(text)
        if description["format"] != FORMAT:
            raise ValueError(
                f"{path} is of format {description['format']}, and this program reads {FORMAT}: "
                "take the run_onnx.py of the version that wrote it"
            )
        for known in description["classes"]:
            known["name"], known["color"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: its metadata under {METADATA_KEY!r} are not those that ocr-panoptic export "
            "writes; export it again"
        ) from error
    return description


def read_image(path: str | os.PathLike) -> np.ndarray:
    """
    Return an image as uint8 [H, W, 3] RGB, turned as the file's EXIF data say; of 16 bits the upper
    8.

    Raises:
        ValueError: the file is no image, or is damaged.
    """
    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)
            if image.mode == "F":
                raise ValueError("its values have no known white")
            if image.mode.startswith("I"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error


def assigned_confidence(prediction: Prediction) -> np.ndarray:
    """
    The probability of what each pixel is assigned to: of its label, or in a panoptic map the score
    of its instance, and 0 where it is void.

    Returns:
        float32 [H, W]
    """
    if "ids" not in prediction:
        return prediction["confidences"]
    of_segment = np.full(len(prediction["segments"]) + 1, -1, np.float32)  # -1: of the label
    of_segment[0] = 0
    for segment in prediction["segments"]:
        if segment["isthing"]:
            of_segment[segment["id"]] = segment["score"]
    assigned = of_segment[prediction["ids"]]
    return np.where(assigned < 0, prediction["confidences"], assigned)


class Input(NamedTuple):
    """
    An image: the ``name`` of its results, without suffix, and its ``file_name``, the path below the
    folder of all.
    """

    name: str
    file_name: str
    path: Path


def find_images(entries: Sequence[str]) -> list[Input]:
    """
    Return each image once, in order, of images and of folders of images, which may have folders and
    links to folders in them; hidden ones are left out.

    Raises:
        FileNotFoundError: an entry is not there, or a folder holds no image.
    """
    found: dict[Path, None] = {}
    folders = []
    for entry in entries:
        path = Path(os.path.abspath(entry))
        if path.is_dir():
            files = sorted(_images_below(path))
            if not files:
                raise FileNotFoundError(f"--input {entry}: no image in this folder")
        elif path.is_file():
            files = [path]
        else:
            raise FileNotFoundError(f"--input {entry}: no such file or folder")
        found.update(dict.fromkeys(files))
        folders.append(path if path.is_dir() else path.parent)
    root = os.path.commonpath(folders)
    file_names = [file.relative_to(root).as_posix() for file in found]
    return [Input(*names) for names in zip(unique_names(file_names), file_names, found)]


def _images_below(folder: Path) -> Iterator[Path]:
    seen = set()  # real paths: a link may lead back
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        folders.sort(key=lambda name: os.path.islink(os.path.join(root, name)))  # own names first
        for name in names:
            path = Path(root, name)
            if name[0] != "." and path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
                yield path


def unique_names(names: Sequence[str]) -> list[str]:
    """Without suffixes, but for those that would be alike: "a.jpg" and "a.png" keep theirs, and
    then "a.jpg.bmp" its own."""
    found = [name.removesuffix(Path(name).suffix) for name in names]
    while True:
        counts = Counter(map(str.lower, found))
        now = [n if counts[f.lower()] > 1 else f for n, f in zip(names, found)]
        if now == found:  # what is alike now differs in capitals alone, as the files do
            return found
        found = now


class Results:
    """
    The files of a run.

    Args:
        folder: new or empty.

    Raises:
        ValueError: it holds files.
    """

    def __init__(self, folder: Path, model: Model, overlays: bool):
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise ValueError(f"--output {folder} is there already: name a new or an empty folder")
        self._folder, self._model, self._overlays = folder, model, overlays
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def add(self, source: Input, image: np.ndarray, prediction: Prediction) -> None:
        """Write the files of an image, each whole or not at all."""
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
            segments = list(self._segments(prediction, confidence))
            self._annotations.append(
                {"image_id": number, "file_name": f"{name}.png", "segments_info": segments}
            )
        else:
            segments = list(self._classes(labels, confidence))
            self._images.append({**entry, "labels": f"{name}.png", "segments": segments})
        if self._overlays:
            self._save(f"overlays/{name}.jpg", overlay(image, prediction, self._model))

    def finish(self) -> None:
        """Write ``panoptic.json``, which panopticapi reads, or ``labels.json``."""
        if self._model.is_panoptic:
            name, content = (
                "panoptic.json",
                {
                    "images": self._images,
                    "annotations": self._annotations,
                    "categories": self._model.description["categories"],
                },
            )
        else:
            classes = [{"label": k, **known} for k, known in enumerate(self._model.classes)]
            name, content = "labels.json", {"classes": classes, "images": self._images}
        with _replacing(self._folder / name) as temporary:
            temporary.write_text(json.dumps(content))

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
            if not len(rows):  # hidden; panopticapi refuses those
                continue
            kind = "thing_ids" if segment["isthing"] else "stuff_ids"
            (top, bottom), (left, right) = ((p.min(), p.max() + 1) for p in (rows, columns))
            score = {"score": segment["score"]} if segment["isthing"] else {}
            yield {
                "id": segment["id"],
                "category_id": self._model.description[kind][segment["category_id"]],
                "iscrowd": 0,
                "area": len(rows),
                "bbox": [int(v) for v in (left, top, right - left, bottom - top)],
                **score,
                "confidence": round(float(confidence[rows, columns].mean(dtype=float)), 4),
            }

    def _save(self, name: str, pixels: np.ndarray) -> None:
        with _replacing(self._folder / name) as temporary:
            Image.fromarray(pixels).save(temporary, format=FORMATS[Path(name).suffix])


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A name to write to, which takes the place of ``path`` when all has gone well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    start = os.fsdecode(os.fsencode(path.name)[:200])  # a name has at most 255 bytes
    temporary = path.with_name(f".{start}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def overlay(image: np.ndarray, prediction: Prediction, model: Model) -> np.ndarray:
    """uint8 [H, W, 3]: the colours of the classes over the image, the segments outlined."""
    ids = prediction.get("ids", prediction["labels"])
    if model.is_panoptic:
        colors = np.full((ids.max() + 1, 3), 128)
        for segment in prediction["segments"]:
            classes = model.description["things"] if segment["isthing"] else model.classes
            if segment["id"] < len(colors):
                colors[segment["id"]] = classes[segment["category_id"]]["color"]
    else:
        colors = np.array([entry["color"] for entry in model.classes])
    picture = (0.4 * image + 0.6 * colors[ids]).round().astype(np.uint8)
    edges = np.zeros(ids.shape, bool)
    edges[:, :-1] |= ids[:, :-1] != ids[:, 1:]
    edges[:-1] |= ids[:-1] != ids[1:]
    picture[edges] = 255
    return picture


def run(arguments: argparse.Namespace) -> int:
    """Returns: the exit status, 1 where an image could not be read, or the model not run on it."""
    images = find_images(arguments.input)
    model = Model(arguments.model, threads=arguments.threads)
    results = Results(arguments.output, model, arguments.overlays)
    failed = []
    for number, source in enumerate(images, start=1):
        try:
            image = read_image(source.path)
        except ValueError as error:
            failed.append(str(error))
            continue
        try:
            prediction = model(image)
        except ValueError as error:
            failed.append(f"{source.path}: {error}")
            continue
        try:
            results.add(source, image, prediction)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:  # which is this image's, and no other's
                raise
            failed.append(f"{source.path}: the name is too long for those of its results")
            continue
        print(f"{number}/{len(images)} {source.path}", flush=True)
    results.finish()
    for message in failed:
        print(f"error: {message}", file=sys.stderr)
    done = len(images) - len(failed)
    print(f"{done} of {len(images)} images predicted in {arguments.output}")
    return 1 if failed else 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="file that ocr-panoptic export has written")
    parser.add_argument("--input", required=True, nargs="+", help="images, or folders of them")
    parser.add_argument("--output", required=True, type=Path, help="new folder of the results")
    parser.add_argument("--overlays", action="store_true", help="draw them over the images, too")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0: all cores")
    try:
        return run(parser.parse_args(argv))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
