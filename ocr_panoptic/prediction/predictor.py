"""A model's output for an image as arrays. Shape letters: K classes, H, W size of the image."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.structures import Instances

from ocr_panoptic.engine.single_image import model_input
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.pictures import COLOURS, TooThin
from ocr_panoptic.modeling import InferenceModel
from ocr_panoptic.modeling.inference import Size
from ocr_panoptic.modeling.large_images import Band, Rows
from ocr_panoptic.modeling.panoptic_merge import rules_of_config
from ocr_panoptic.segfix.refinement import RefinedModel

from .inputs import Item
from .memory import sees_own_size
from .rows import open_image, rows_of
from .tiles import PanopticTiles, check_tiling


@dataclass(frozen=True)
class Prediction:
    """
    Attributes:
        labels: of the semantic classes, int64 [H,W].
        confidence: probability of what the pixel is assigned to, float32 [H,W] in 0..1: of its
            label, or in a panoptic map the score of its instance, and 0 where it is void.
        ids: of the segments, int32 [H,W], 0 is void; None for a semantic model.
        segments: "id", "isthing", the model's "category_id" and, of things, "score"; of an image
            that is seen in tiles those of :class:`.Joined`.
        instances: with boxes, classes, scores and masks in the image's size; of an image that is
            seen in tiles those of :class:`.PanopticBand`.
    """

    labels: np.ndarray
    confidence: np.ndarray
    ids: np.ndarray | None = None
    segments: Sequence[dict[str, Any]] = ()
    instances: Instances | list[dict[str, Any]] | None = None


@contextmanager
def named(item: Item) -> Iterator[None]:
    """A block that sees an image: what is wrong with it is raised as a ValueError that names it."""
    try:
        yield
    except (TooThin, FloatingPointError) as error:
        raise UserError(f"{item.source}: {error}.") from error


class Predictor:
    """
    Args:
        model: of a ``PanopticFPN`` or an ``OCRSemanticSegmentor``.
        limit: why an image is too large to be seen at once, for messages.
        whole_regions: of images in bands, see :meth:`bands`.

    Raises:
        ValueError: the model cannot see images with the regions of the whole image.
    """

    def __init__(
        self,
        cfg: CfgNode,
        model: InferenceModel | RefinedModel,
        limit: str,
        whole_regions: bool = False,
    ):
        self._model = model
        self._cfg, self._limit, self._whole_regions = cfg, limit, whole_regions
        if whole_regions:
            try:
                self._check_bands()
            except ValueError as error:
                raise UserError(f"--whole-regions: {error}") from error

    @torch.inference_mode()
    def __call__(self, item: Item, image: np.ndarray) -> Prediction:
        """
        Args:
            item: names the image in messages.
            image: [H,W,C] in the channel order INPUT.FORMAT.

        Raises:
            ValueError: it has not INPUT.CHANNELS channels, is too thin, or the scores are no
                numbers.
        """
        with named(item):
            output = self._see(image)
        confidence, labels = output["confidence"], output["labels"]
        if "panoptic_seg" not in output:
            return Prediction(labels.cpu().numpy(), confidence.cpu().numpy())
        ids, segments = output["panoptic_seg"]
        scores = torch.full((int(ids.max()) + 1,), -1.0, device=ids.device)  # of each segment's id
        scores[0] = 0
        for segment in segments:
            if segment["isthing"]:
                scores[segment["id"]] = segment["score"]
        scores = scores[ids.long()]
        return Prediction(
            labels.cpu().numpy(),
            torch.where(scores < 0, confidence, scores).cpu().numpy(),
            ids.cpu().numpy(),
            segments,
            output["instances"].to("cpu"),
        )

    @property
    def sees_tiles(self) -> bool:
        """Return whether a large image is for :meth:`tiles`, and not for :meth:`bands`."""
        return self._cfg.MODEL.META_ARCHITECTURE == "PanopticFPN"

    def in_parts(self, item: Item, image: np.ndarray | None) -> tuple[np.ndarray, Prediction]:
        """
        See an image in :meth:`tiles` or :meth:`bands`.

        Args:
            image: that of the item, if it is in memory; else its file is read.

        Returns:
            the image, and the result for all of it.
        """
        with named(item):
            return (self._in_tiles if self.sees_tiles else self._in_bands)(item, image)

    def _in_bands(self, item: Item, image: np.ndarray | None) -> tuple[np.ndarray, Prediction]:
        size, bands = self.bands(item, image)
        rows = ((b.image.permute(1, 2, 0), b.labels.cpu(), b.confidence.cpu()) for b in bands)
        whole, *found = _joined(size, rows, np.uint8, np.int64, np.float32)
        return whole, Prediction(*found)

    def _in_tiles(self, item: Item, image: np.ndarray | None) -> tuple[np.ndarray, Prediction]:
        tiles, instances = self.tiles(item, image), []

        def rows() -> Iterator[tuple[np.ndarray, ...]]:
            for band in tiles.bands():
                instances.extend(band.instances)
                yield band.image, band.labels, band.confidence, band.ids

        whole, labels, confidence, ids = _joined(
            tiles.size, rows(), np.uint8, np.int64, np.float32, np.int32
        )
        joined = tiles.joined()
        joined.tell_cut(item.source)
        for row, known in zip(ids, confidence):  # in place
            scores = joined.scores[row]
            np.copyto(known, scores, where=scores >= 0)
            row[:] = joined.segment_of[row]
        return whole, Prediction(labels, confidence, ids, joined.segments, instances)

    def tiles(self, item: Item, image: np.ndarray | None = None) -> PanopticTiles:
        """
        A panoptic model on an image that is read from top to bottom, in the windows of
        TEST.SLIDING_WINDOW.

        Args:
            item, image: see :meth:`in_parts`.

        Raises:
            ValueError: the image is broken, or the model cannot see it in tiles.
        """
        read, *size = self._opened(item, image)
        windows = self._cfg.TEST.SLIDING_WINDOW
        stuff_areas = rules_of_config(self._cfg).stuff_areas
        return PanopticTiles(self._see, read(), size, windows.SIZE, windows.STRIDE, stuff_areas)

    @torch.inference_mode()
    def _see(self, image: np.ndarray) -> Mapping[str, Any]:
        """Return the model's output for an image [H,W,C], confidence and labels with it."""
        (output,) = self._model([model_input(self._cfg, image)])
        output["confidence"], output["labels"]  # in one pass, in this order
        return output

    def bands(self, item: Item, image: np.ndarray | None = None) -> tuple[Size, Iterator[Band]]:
        """
        A semantic model on an image that is read and labelled from top to bottom, in the windows of
        TEST.SLIDING_WINDOW; with ``whole_regions`` in tiles that see the regions of all of it.

        Args:
            item, image: see :meth:`in_parts`.

        Returns:
            (H, W) and the bands.

        Raises:
            ValueError: the image is broken, or the model cannot see it in bands.
        """
        read, *size = self._opened(item, image)
        return size, self._model.bands(read, size, self._whole_regions)

    def _opened(self, item: Item, image: np.ndarray | None) -> tuple[Callable[[], Rows], int, int]:
        """As :func:`.open_image`, of an image that the model can see in parts."""
        try:
            self._check_bands()
        except ValueError as error:
            raise UserError(
                f"{item.source}: image is too large to be seen at once: {self._limit}. {error}"
            ) from error
        if image is not None:
            return rows_of(image), *image.shape[:2]
        return open_image(item.source, self._cfg.INPUT.FORMAT)

    def _check_bands(self) -> None:
        if self._cfg.INPUT.CHANNELS != COLOURS:
            raise UserError(
                f"An image that is read in windows has {COLOURS} channels, and INPUT.CHANNELS is "
                f"{self._cfg.INPUT.CHANNELS}: scale the image down, make memory free, or set "
                "--max-pixels."
            )
        if isinstance(self._model, RefinedModel):
            raise UserError(
                "An image that is read in windows is not refined; set TEST.SEGFIX.WEIGHTS to "
                "nothing, or raise --max-pixels."
            )
        if not sees_own_size(self._cfg):
            test = self._cfg.INPUT
            raise UserError(
                "An image that is read in windows is seen at its own size, but "
                f"INPUT.MIN_SIZE_TEST is {test.MIN_SIZE_TEST} and INPUT.FIXED_SIZE "
                f"{list(test.FIXED_SIZE)}; set them to 0 and [] if the model was trained at such a "
                "scale, or scale the image down."
            )
        if self.sees_tiles:
            check_tiling(self._cfg.TEST.SLIDING_WINDOW.SIZE, self._cfg.TEST.SLIDING_WINDOW.STRIDE)
        else:
            self._model.check_bands(self._whole_regions)


def _joined(size: Size, parts: Iterable[Sequence], *dtypes: type) -> list[np.ndarray]:
    """Return arrays whose rows come in parts: of the image [H,W,3], and others [H,W]."""
    whole = [np.empty((*size, 3), dtypes[0]), *(np.empty(size, dtype) for dtype in dtypes[1:])]
    top = 0
    for part in parts:
        bottom = top + len(part[0])
        for array, rows in zip(whole, part, strict=True):
            array[top:bottom] = rows
        top = bottom
    return whole
