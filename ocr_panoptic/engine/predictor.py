"""A model's output for an image as arrays. Shape letters: K classes, H, W size of the image."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

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

from .inputs import LARGE, Item, Read
from .memory import Limit, sees_own_size
from .rows import open_image, rows_of
from .tiles import Joined, PanopticTiles, Strip, check_tiling

logger = logging.getLogger(__name__)


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
            seen in tiles those of :class:`.Strip`.
    """

    labels: np.ndarray
    confidence: np.ndarray
    ids: np.ndarray | None = None
    segments: Sequence[dict[str, Any]] = ()
    instances: Instances | list[dict[str, Any]] | None = None


class Parts(NamedTuple):
    """
    An image that is seen from top to bottom.

    Attributes:
        size: (H, W).
        strips: of the image.
        joined: of a panoptic model, what the ids of all strips stand for.
    """

    size: Size
    strips: Iterator[Strip]
    joined: Callable[[], Joined] | None = None


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
        limit: of the images that are seen at once.
        whole_regions: see :meth:`parts`.

    Raises:
        ValueError: the model cannot see images with the regions of the whole image.
    """

    def __init__(
        self,
        cfg: CfgNode,
        model: InferenceModel | RefinedModel,
        limit: Limit,
        whole_regions: bool = False,
    ):
        self._model = model
        self._cfg, self._limit, self._whole_regions = cfg, limit, whole_regions
        self._is_panoptic = cfg.MODEL.META_ARCHITECTURE == "PanopticFPN"
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

    def sees_parts(self, image: Read) -> bool:
        """Return whether an image has more pixels than are seen at once, see :meth:`parts`."""
        if not isinstance(image, np.ndarray):
            return image is LARGE
        return image.shape[0] * image.shape[1] > self._limit.pixels

    def whole(self, item: Item, image: Read) -> tuple[np.ndarray, Prediction]:
        """Return an image that is seen in :meth:`parts`, and the result for all of it."""
        parts = self.parts(item, image)
        dtypes = (np.uint8, np.int64, np.float32, np.int32)[: 4 if parts.joined else 3]
        shapes = (*parts.size, 3), *[parts.size] * 3
        arrays = [np.empty(shape, dtype) for shape, dtype in zip(shapes, dtypes)]
        top, instances = 0, []
        with named(item):
            for strip in parts.strips:
                bottom = top + len(strip.labels)
                for array, rows in zip(arrays, strip):
                    array[top:bottom] = rows
                instances += strip.instances
                top = bottom
        image, labels, confidence, *ids = arrays
        if not parts.joined:
            return image, Prediction(labels, confidence)
        joined = parts.joined()
        for row, known in zip(*ids, confidence):  # in place
            np.copyto(known, joined.scores[row], where=joined.scores[row] >= 0)
            row[:] = joined.segment_of[row]
        return image, Prediction(labels, confidence, *ids, joined.segments, instances)

    def parts(self, item: Item, image: Read) -> Parts:
        """
        See an image in the windows of TEST.SLIDING_WINDOW: by a semantic model that averages where
        they overlap, or with ``whole_regions`` sees the regions of all of the image; by a panoptic
        one in tiles whose segments are joined.

        Args:
            item: names the image.
            image: [H,W,3], or LARGE: the file is read from top to bottom.

        Raises:
            ValueError: the image is broken, or the model cannot see it in windows.
        """
        read, *size = self._opened(item, image)
        if not self._is_panoptic:
            bands = self._model.bands(read, size, self._whole_regions)
            return Parts(size, map(_strip, bands))
        windows, rules = self._cfg.TEST.SLIDING_WINDOW, rules_of_config(self._cfg)
        tiles = PanopticTiles(
            self._see, read(), size, windows.SIZE, windows.STRIDE, rules.stuff_areas
        )

        def joined() -> Joined:
            found = tiles.joined()
            if found.cut:
                logger.warning(
                    "%s: %d of %d things lie in no tile of TEST.SLIDING_WINDOW as a whole. Joined "
                    "from parts, they may be incomplete, or several: set a larger SIZE, and SIZE - "
                    "STRIDE as large as the things.",
                    item.source,
                    found.cut,
                    sum(segment["isthing"] for segment in found.segments),
                )
            return found

        return Parts(size, tiles.bands(), joined)

    @torch.inference_mode()
    def _see(self, image: np.ndarray) -> Mapping[str, Any]:
        """Return the model's output for an image [H,W,C], confidence and labels with it."""
        (output,) = self._model([model_input(self._cfg, image)])
        output["confidence"], output["labels"]  # in one pass, in this order
        return output

    def _opened(self, item: Item, image: Read) -> tuple[Callable[[], Rows], int, int]:
        """As :func:`.open_image`, of an image that the model can see in parts."""
        try:
            self._check_bands()
        except ValueError as error:
            raise UserError(
                f"{item.source}: image is too large to be seen at once: {self._limit.reason}. "
                f"{error}"
            ) from error
        if image is not LARGE:
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
                "scale, scale the image down, or raise --max-pixels."
            )
        if self._is_panoptic:
            check_tiling(self._cfg.TEST.SLIDING_WINDOW.SIZE, self._cfg.TEST.SLIDING_WINDOW.STRIDE)
        else:
            self._model.check_bands(self._whole_regions)


def _strip(band: Band) -> Strip:
    image = band.image.permute(1, 2, 0).numpy()
    return Strip(image, band.labels.cpu().numpy(), band.confidence.cpu().numpy())
