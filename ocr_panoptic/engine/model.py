"""A trained model, for people who write Python."""

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from detectron2.config import CfgNode
from PIL import Image

from ocr_panoptic.data.data_file import data_options
from ocr_panoptic.engine.config_files import options_of
from ocr_panoptic.engine.segfix import refined_by_segfix
from ocr_panoptic.engine.single_image import class_metadata
from ocr_panoptic.engine.task import task_of
from ocr_panoptic.engine.trained_model import build_trained_model, trained_config
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable
from ocr_panoptic.formats.pictures import COLOURS, finite, picture_pixels, reordered
from ocr_panoptic.seeding import kept_generators

from .class_names import LABELS, classes_of
from .inputs import ABSENT, ImageFiles, Item, Read, find_inputs
from .memory import largest_image
from .outputs import Writer
from .predictor import Predictor
from .result import Result

Source = str | PathLike | np.ndarray | Image.Image


def load(
    run: str | PathLike,
    weights: str | PathLike | None = None,
    *,
    data: str | PathLike | Sequence[str | PathLike] = (),
    **keys: Any,
) -> "Model":
    """
    Load a trained model, on a GPU where there is one, and print a line that says which.

    Args:
        run: the folder of a run, or a config: a file or the name of one of the package.
        weights: the trained weights; by default the last checkpoint of the folder, or those that
            the config names.
        data: files of the data set that names the classes; by default those of the run.
        keys: of the config, ``**{"MODEL.DEVICE": "cpu"}``.

    Raises:
        FileNotFoundError: config, weights or the data that have the names of the classes are not
            there.
        ValueError: the weights do not fit the config, or a key or value is wrong.
    """
    cfg = trained_config(run, weights, [*data_options(data), *options_of(keys)])
    with kept_generators():
        model = Model(cfg)
    print(f"Loaded {model}", file=sys.stderr)
    return model


class Model:
    """
    A trained model that predicts images; :func:`load` makes one.

    Attributes:
        config: of the model, completed.
        classes: names of the semantic classes; of a panoptic model the first is "things".
        things: names of the classes of instances; [] for a semantic model.
    """

    def __init__(self, config: CfgNode):
        self.config = config
        known = classes_of(class_metadata(config), LABELS[0])
        self.classes: list[str] = list(known.names)
        self.things: list[str] = known.thing_names
        self._limit = largest_image(config)
        model = refined_by_segfix(config, build_trained_model(config))
        self._predictor = Predictor(config, model, self._limit)
        channels = config.INPUT.CHANNELS
        self._writer = Writer(Path(), known, True, config.INPUT.FORMAT, channels)

    def __str__(self) -> str:
        cfg, task = self.config, task_of(self.config)
        return (
            f"{cfg.MODEL.WEIGHTS}: {task.title}, {cfg.MODEL.SEM_SEG_HEAD.NAME}, "
            f"{task.classes(cfg)}, on {cfg.MODEL.DEVICE}"
        )

    def __repr__(self) -> str:
        return f"<Model {self}>"

    def predict(self, source: Source | Iterable[Source]) -> Result | Iterator[Result]:
        """
        Predict an image, or many one after the other.

        Args:
            source: an image file; an array [H,W,C], uint8, RGB first (float32 where the model was
                trained on other images than pictures); an image of Pillow, turned as its EXIF data
                say; or many: a folder with all below it, a list of files (``.txt``), a video, or
                anything that gives such images in turn.

        A larger image than is seen at once comes in the windows of TEST.SLIDING_WINDOW, as in
        ``ocr-panoptic predict``; only the result is held.

        Returns:
            a :class:`.Result`; for many an iterator of them, which reads images ahead.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: an image is broken, of another shape than the model needs, or too large for
                the memory. Of many the others come first; then all such images are named.
        """
        if isinstance(source, str | PathLike):
            inputs = find_inputs(os.fspath(source), None, self._limit.pixels)
            images = inputs.read(inputs.items, self.config.INPUT.FORMAT, self.config.INPUT.CHANNELS)
            if isinstance(inputs, ImageFiles) and inputs.entry == inputs.items[0].source:
                return self._result(*next(images))
            return _each(self._result, ((i, x) for i, x in images if x is not ABSENT))
        if isinstance(source, np.ndarray | Image.Image):
            return self._of_image("image", source)
        names = (f"{number:06d}" for number in itertools.count())
        return _each(self._of_source, zip(names, source))

    def _of_source(self, name: str, source: Source) -> Result:
        if not isinstance(source, str | PathLike):
            return self._of_image(name, source)
        result = self.predict(source)
        if not isinstance(result, Result):
            raise UserError(f"{source}: is no image, as those of a list are")
        return result

    def _of_image(self, name: str, source: np.ndarray | Image.Image) -> Result:
        cfg = self.config.INPUT
        try:
            if isinstance(source, Image.Image):
                image = picture_pixels(source, cfg.FORMAT, cfg.CHANNELS)
            else:
                image = reordered(_checked(source, cfg.CHANNELS), cfg.FORMAT)
        except ValueError as error:
            raise UserError(f"{name}: {error}") from error
        return self._result(Item(name, name, Path(name), ()), image)

    def _result(self, item: Item, image: Read) -> Result:
        if isinstance(image, Exception):
            raise image
        if self._predictor.sees_parts(image):
            return Result(item, *self._predictor.whole(item, image), self._writer)
        return Result(item, image, self._predictor(item, image), self._writer)


def _checked(image: Any, channels: int) -> np.ndarray:
    """
    Raises:
        ValueError: it is no array that the model can see.
    """
    kind = "uint8" if channels == COLOURS else "uint8 or numbers"
    expected = f"expected an array [H,W,{channels}] of {kind}, RGB first"
    if not isinstance(image, np.ndarray):
        raise UserError(f"is a {type(image).__name__}; {expected}, an image of Pillow or a path")
    if image.ndim != 3 or image.shape[2] != channels or 0 in image.shape:
        raise UserError(f"has the shape {list(image.shape)}; {expected}")
    if image.dtype != np.uint8 and (channels == COLOURS or image.dtype.kind not in "uif"):
        raise UserError(f"is of {image.dtype}; {expected}")
    return finite(image)


def _each(predict: Callable[..., Result], images: Iterable[tuple]) -> Iterator[Result]:
    """Yield the results of images; at the end those without one are named."""
    faults, count = [], 0
    for image in images:
        count += 1
        try:
            result = predict(*image)
        except (OSError, ValueError) as error:
            faults.append(error)
        else:
            yield result
    if faults and count == 1:
        raise faults[0]
    if faults:
        listed = "\n  ".join(map(printable, faults))
        raise UserError(f"{len(faults)} of {count} images have no result:\n  {listed}")
