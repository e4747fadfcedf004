"""The Python interface to a trained model."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import TextIOBase
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from detectron2.config import CfgNode
from PIL import Image
from torch import nn

from ocr_panoptic.checkpoint.start import Start
from ocr_panoptic.config.files import load_config, quoted
from ocr_panoptic.config.keys import PANOPTIC
from ocr_panoptic.data.data_file import read_data_files
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import path_argument, printable
from ocr_panoptic.formats.pictures import COLOURS, TooThin, picture_pixels, read_picture, reordered
from ocr_panoptic.modeling.build import build_model
from ocr_panoptic.modeling.inference_output import InferenceOutput
from ocr_panoptic.modeling.panoptic_merge import rules_of_config
from ocr_panoptic.seeding import kept_generators

from .complete import complete_config
from .result import LABELS, Result, classes_of
from .run_info import precision_of
from .single_image import class_metadata, model_input
from .sources import Item, find_inputs, read_items
from .task import refined, task_of
from .tiles import check_tiling, see_in_tiles
from .trained_model import build_trained_model, trained_model

logger = logging.getLogger(__name__)

Source = str | PathLike | np.ndarray | torch.Tensor | Image.Image | IO[bytes]


def load(
    run: str | PathLike,
    weights: str | PathLike | None = None,
    *,
    data: str | PathLike | Sequence[str | PathLike] = (),
    **keys: Any,
) -> "Model":
    """
    Load a trained model, on a GPU if there is one, and print a line that describes the model.

    Args:
        run: file of trained weights, which also stores settings and classes; ONNX file of an
            exported model; name of a published model, such as "ade20k"; folder of a run; or config
            (a file or a name in the package).
        weights: file of trained weights; by default the last checkpoint in the run's folder, or the
            config's weights.
        data: data files (datasets/README.md), whose classes must equal the classes of the weights.
        **keys: overrides of config keys, such as ``**{"MODEL.DEVICE": "cpu"}``.

    Raises:
        FileNotFoundError: the config or the weights are missing, or weights from an earlier version
            of this package need the class names of a data set that is missing.
        ValueError: the config or the data contradict the training, the weights do not fit the
            model, or a key or value is wrong.
    """
    overrides, files = quoted(keys), read_data_files(data)
    cfg, start = trained_model(run, weights, overrides, files=files)
    with kept_generators():
        model = Model(cfg, start=start)
    print(f"Loaded {model}", file=sys.stderr)
    return model


def build(config: str | PathLike, **keys: Any) -> nn.Module:
    """
    Build the network of a config with random weights, without data; MODEL.WEIGHTS is not loaded.

    The network is on MODEL.DEVICE and in training mode.

    Args:
        config: config (a file or a name in the package) or folder of a run.
        **keys: overrides of config keys, such as ``**{"MODEL.SEM_SEG_HEAD.NUM_CLASSES": 19}``.

    Raises:
        FileNotFoundError: the config is missing.
        ValueError: a key or value is wrong, or a number of classes is left to the data.
    """
    cfg = load_config(path_argument("config", config), quoted(keys))
    cfg.DATASETS.FILES = cfg.DATASETS.TRAIN = cfg.DATASETS.TEST = ()
    cfg.MODEL.WEIGHTS = ""
    complete_config(cfg)
    return build_model(cfg)


class Model:
    """
    A trained model for prediction on images, returned by :func:`load`.

    Attributes:
        config: completed config of the model.
        classes: names of the semantic classes; the first is "things" in a panoptic model.
        things: names of the thing classes; [] for a semantic model.
    """

    def __init__(self, config: CfgNode, labels: str = LABELS[0], start: Start | None = None):
        """
        Build the model of a completed config, and load its weights.

        Args:
            config: completed config, whose MODEL.WEIGHTS names trained weights.
            labels: values in the label PNGs of results: "train" for class indices from 0,
                "dataset" for the labels in the data set's files.
            start: facts about the weights, if they have been read already.
        """
        self.config = config
        self._known = classes_of(class_metadata(config), labels)
        self.classes: list[str] = list(self._known.names)
        self.things: list[str] = self._known.thing_names
        test, inputs = config.TEST, config.INPUT
        has_windows = bool(test.SLIDING_WINDOW.SIZE)
        is_resized = bool(inputs.MIN_SIZE_TEST or inputs.FIXED_SIZE)
        self._in_tiles = has_windows and PANOPTIC.holds(config)
        if self._in_tiles:
            check_tiling(test.SLIDING_WINDOW.SIZE, test.SLIDING_WINDOW.STRIDE)
            if is_resized:
                raise UserError(
                    "TEST.SLIDING_WINDOW is set, and the config resizes images. A panoptic model "
                    "needs tiles of the original image: set INPUT.MIN_SIZE_TEST to 0 and "
                    "INPUT.FIXED_SIZE to []. Or set TEST.SLIDING_WINDOW.SIZE and STRIDE to []."
                )
        self._trained = trained = build_trained_model(config, start)
        self._model = refined(config, trained)
        # To resize images, average over scales or refine results, the model needs whole images.
        whole = is_resized or tuple(test.SCALES) != (1.0,) or self._model is not trained
        self._windowed = trained if has_windows and not self._in_tiles and not whole else None

    def __str__(self) -> str:
        cfg, task = self.config, task_of(self.config)
        return (
            f"{cfg.MODEL.WEIGHTS}: {task.title}, {cfg.MODEL.SEM_SEG_HEAD.NAME}, "
            f"{task.classes(cfg)}, on {cfg.MODEL.DEVICE} in {precision_of(cfg, self._trained)}"
        )

    def __repr__(self) -> str:
        return f"<Model {self}>"

    @property
    def module(self) -> nn.Module:
        """
        The network, a ``torch.nn.Module`` in evaluation mode on MODEL.DEVICE.

        It takes a list of Detectron2's dicts. If TEST.OPTIMIZED is True, norms are folded into
        convolutions, and in half precision weights are cast; load the model with
        ``**{"TEST.OPTIMIZED": False}`` for the weights as they were trained.
        """
        return self._trained.network

    def predict(self, source: Source | Iterable[Source]) -> Result | Iterator[Result]:
        """
        Run the model on one image, or on several images one after the other.

        Args:
            source: image file, as a path or opened in binary mode (``io.BytesIO``); uint8 array
                [H,W,C] in RGB order, or [H,W] (grey); uint8 tensor [C,H,W] in RGB order; Pillow
                image (its EXIF orientation is applied); or several images: a folder with its
                subfolders, a list of files (``.txt``), a video, or an iterable of images.

        Returns:
            a :class:`.Result`; for several images, an iterator of results

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: an image is broken or has a shape that the model does not accept. With
                several images, the error comes after all results, and names all such images.
        """
        if isinstance(source, str | PathLike):
            inputs = find_inputs(source)
            results = _raise_faults_last(result for _, result in self.results(inputs.items))
            first = inputs.items[0]
            is_image = first.source == inputs.entry and first.frame is None
            return next(results) if is_image else results
        if isinstance(source, np.ndarray | torch.Tensor | Image.Image) or hasattr(source, "read"):
            return self._result_of_image("image", source)
        if not isinstance(source, Iterable) or isinstance(source, bytes | memoryview | Mapping):
            raise UserError(
                f"predict() was given {source!r:.100}, a {type(source).__name__}; expected a path, "
                "an array, a tensor, a Pillow image, or a list of these."
            )
        return _raise_faults_last(
            _result_or_error(self._result_of_source, f"{number:06d}", image)
            for number, image in enumerate(source)
        )

    def results(self, items: Iterable[Item]) -> Iterator[tuple[Item, Result | Exception]]:
        """Yield each item with its result, or with the error about the item's image."""
        inputs = self.config.INPUT
        for item, image in read_items(items, inputs.FORMAT, inputs.CHANNELS):
            if isinstance(image, Exception):
                yield item, image
            else:
                yield item, _result_or_error(self._result, item, image)

    def _result_of_source(self, name: str, source: Source) -> Result:
        if not isinstance(source, str | PathLike):
            return self._result_of_image(name, source)
        result = self.predict(source)
        if not isinstance(result, Result):
            raise UserError(f"{source} is not an image. A list may contain only images.")
        return result

    def _result_of_image(self, name: str, source: Any) -> Result:
        cfg = self.config.INPUT
        if isinstance(source, TextIOBase):
            raise UserError(f'{name} is a file opened in text mode. Open it with mode "rb".')
        if not isinstance(source, Image.Image) and hasattr(source, "read"):
            image = read_picture(source, cfg.FORMAT, cfg.CHANNELS)
            return self._result(Item(name, name, Path(name)), image)
        if isinstance(source, Image.Image):
            try:
                image = picture_pixels(source, cfg.FORMAT, cfg.CHANNELS)
            except ValueError as error:
                raise UserError(f"{name}: {error}") from error
            return self._result(Item(name, name, Path(name)), image)
        array: Any = source
        if isinstance(source, torch.Tensor) and source.dtype == torch.uint8:
            array = (source.permute(1, 2, 0) if source.ndim == 3 else source).cpu().numpy()
        if isinstance(array, np.ndarray) and array.ndim == 2:  # grey
            channels = cfg.CHANNELS if cfg.CHANNELS <= COLOURS else 1
            array = np.repeat(array[:, :, None], channels, 2)
        is_uint8 = isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.size > 0
        if not is_uint8 or array.shape[2:] != (cfg.CHANNELS,):
            kind, shape = getattr(source, "dtype", type(source).__name__), np.shape(source)
            raise UserError(
                f"{name} has type {kind} and shape {list(shape)}; expected a uint8 array "
                f"[H,W,{cfg.CHANNELS}] (RGB first), a uint8 tensor [{cfg.CHANNELS},H,W], a Pillow "
                "image or a path."
            )
        return self._result(Item(name, name, Path(name)), reordered(array, cfg.FORMAT))

    def _result(self, item: Item, image: np.ndarray) -> Result:
        """Return the result for an image [H,W,C] in the channel order INPUT.FORMAT."""
        try:
            found = self._predictions(item, image)
        except (TooThin, FloatingPointError) as error:
            raise UserError(f"{item.source}: {error}.") from error
        return Result(item, reordered(image, self.config.INPUT.FORMAT), self._known, *found)

    def _predictions(self, item: Item, image: np.ndarray) -> tuple:
        """Return labels and confidence and, from a panoptic model, ids, segments and instances."""
        window, step = self.config.TEST.SLIDING_WINDOW.SIZE, self.config.TEST.SLIDING_WINDOW.STRIDE
        if self._in_tiles and any(side > most for side, most in zip(image.shape, window)):
            areas = rules_of_config(self.config).stuff_areas
            *found, cut = see_in_tiles(self.output, image, window, step, areas)
            if cut:
                logger.warning(
                    "%s: no tile shows %d of the things completely, so they may be cut. Increase "
                    "TEST.SLIDING_WINDOW.SIZE: tiles must overlap (SIZE minus STRIDE) by at least "
                    "the size of these things.",
                    item.source,
                    cut,
                )
            return tuple(found)
        if self._windowed:
            tensor = model_input(self.config, image)["image"]
            return tuple(part.numpy() for part in self._windowed.window_labels(tensor))
        output = self.output(image)
        confidence, labels = (output[key].cpu().numpy() for key in ("confidence", "labels"))
        if "panoptic_seg" not in output:
            return labels, confidence
        ids, segments = output["panoptic_seg"]
        return labels, confidence, ids.cpu().numpy(), segments, output["instances"].to("cpu")

    @torch.inference_mode()
    def output(self, image: np.ndarray) -> InferenceOutput:
        """Return the network's output for an image [H,W,C] in the channel order INPUT.FORMAT."""
        (output,) = self._model([model_input(self.config, image)])
        output["confidence"]  # computing the confidence first also gives the labels
        return output


def _result_or_error(predict: Callable[..., Result], *arguments: Any) -> Result | Exception:
    """Return the result of ``predict``, or the OSError or UserError that it raises."""
    try:
        return predict(*arguments)
    except (OSError, UserError) as error:
        return error


def _raise_faults_last(results: Iterable[Result | Exception]) -> Iterator[Result]:
    """Yield the results, and then raise an error that names all images without a result."""
    faults, done = [], 0
    for result in results:
        if isinstance(result, Exception):
            faults.append(result)
        else:
            done += 1
            yield result
    if len(faults) == 1 and not done:
        raise faults[0]
    if faults:
        listed = "\n  ".join(map(printable, faults))
        raise UserError(f"No result for {len(faults)} of {done + len(faults)} images:\n  {listed}")
