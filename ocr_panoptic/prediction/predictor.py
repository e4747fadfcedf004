"""A model's output for an image as arrays. Shape letters: K classes, H, W size of the image."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.structures import Instances
from detectron2.utils import comm
from torch import nn

from ocr_panoptic.engine.single_image import model_input
from ocr_panoptic.modeling.confidence import confident_argmax
from ocr_panoptic.modeling.inference import Size
from ocr_panoptic.modeling.large_images import Band, Rows, tile_bands, window_bands
from ocr_panoptic.modeling.optimized import inference_precision
from ocr_panoptic.modeling.panoptic_inference import Prediction as PanopticPrediction
from ocr_panoptic.modeling.segfix_refinement import RefinedModel, refine_output
from ocr_panoptic.offsets import moved

from .rows import open_rows

LARGEST = 50_000_000  # pixels


@dataclass(frozen=True)
class Prediction:
    """
    Attributes:
        labels: of the semantic classes, int64 [H,W].
        confidence: probability of what the pixel is assigned to, float32 [H,W] in 0..1: of its
            label, or in a panoptic map the score of its instance, and 0 where it is void.
        ids: of the segments, int32 [H,W], 0 is void; None for a semantic model.
        segments: "id", "isthing", the model's "category_id" and, of things, "score".
        instances: with boxes, classes, scores and masks in the image's size.
    """

    labels: np.ndarray
    confidence: np.ndarray
    ids: np.ndarray | None = None
    segments: tuple[dict[str, Any], ...] = ()
    instances: Instances | None = None


def largest_image(cfg: CfgNode) -> int:
    """
    Pixels of the largest image that is seen at once: for a semantic model LARGEST, for a panoptic
    one as many as half of the free memory has room for, but not more.
    """
    if cfg.MODEL.META_ARCHITECTURE != "PanopticFPN":
        return LARGEST
    if cfg.MODEL.DEVICE.startswith("cuda"):
        free = torch.cuda.mem_get_info()[0]
    else:
        free = _available_memory() / comm.get_world_size()
    # Masks of the instances, twice, and some maps; not optimized, scores of all classes twice.
    of_pixel = 2 * cfg.TEST.DETECTIONS_PER_IMAGE + 128
    of_pixel += 0 if cfg.TEST.OPTIMIZED else 8 * cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES
    return min(LARGEST, int(free / 2 / of_pixel))


def _available_memory() -> int:
    """Bytes that the system can give to programs; what it keeps of files read is among them."""
    meminfo = Path("/proc/meminfo")  # on Linux
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 1024 * kilobytes[0] if kilobytes else free


class Predictor:
    """
    Args:
        model: in evaluation mode; a ``PanopticFPN`` or an ``OCRSemanticSegmentor``, or a
            :class:`.RefinedModel` of one.
        whole_regions: of images in bands, see :meth:`bands`.
    """

    def __init__(self, cfg: CfgNode, model: nn.Module, whole_regions: bool = False):
        self._refinement = model if isinstance(model, RefinedModel) else None
        self._cfg, self._whole_regions = cfg, whole_regions
        self._model = self._refinement.model if self._refinement else model
        self._predict = (
            self._panoptic if cfg.MODEL.META_ARCHITECTURE == "PanopticFPN" else self._semantic
        )

    @torch.inference_mode()
    def __call__(self, image: np.ndarray) -> Prediction:
        """
        Args:
            image: uint8 [H,W,3] in the channel order INPUT.FORMAT.
        """
        with inference_precision(self._cfg):
            inputs = model_input(self._cfg, image)
            prediction = self._predict(inputs)
            return self._refined(prediction, inputs) if self._refinement else prediction

    def bands(self, path: Path) -> tuple[Size, Iterator[Band]]:
        """
        A semantic model on an image that is read and labelled from top to bottom, in the windows of
        TEST.SLIDING_WINDOW; with ``whole_regions`` in tiles that see the regions of all of it.

        Returns:
            (H, W) and the bands.

        Raises:
            ValueError: the image is broken, or the config has no windows, or resizes images.
        """
        if self._cfg.MODEL.META_ARCHITECTURE == "PanopticFPN":
            limit = largest_image(self._cfg)
            side = math.isqrt(limit)
            raise ValueError(
                f"{path}: image is too large for a panoptic model, whose instances have masks of "
                f"its whole size; the free memory is for {limit / 1e6:.1f} megapixels, "
                f"{side}x{side} say. Scale the image down, or set --max-pixels"
            )
        if self._refinement:
            raise ValueError(
                f"{path}: an image that is read in windows is not refined; leave "
                "TEST.SEGFIX.WEIGHTS out, or raise --max-pixels"
            )
        resized = self._cfg.INPUT.MIN_SIZE_TEST, list(self._cfg.INPUT.FIXED_SIZE)
        if resized != (0, []):
            raise ValueError(
                f"{path}: an image that is read in windows is seen at its own size, but "
                f"INPUT.MIN_SIZE_TEST is {resized[0]} and INPUT.FIXED_SIZE {resized[1]}; set them "
                "to 0 and [] if the model was trained at such a scale, or scale the image down"
            )

        def rows() -> tuple[Rows, int, int]:
            return open_rows(path, self._cfg.INPUT.FORMAT)

        read, *size = rows()
        if self._whole_regions:
            bands = tile_bands(self._model, lambda: rows()[0], size)
        else:
            bands = window_bands(self._model, read, size)
        return size, self._in_precision(bands)

    def _in_precision(self, bands: Iterator[Band]) -> Iterator[Band]:
        with torch.inference_mode(), inference_precision(self._cfg):
            yield from bands

    def _semantic(self, inputs: dict[str, Any]) -> Prediction:
        labels, confidence = self._model.confident_labels(inputs)
        return Prediction(labels.cpu().numpy(), confidence.cpu().numpy())

    def _panoptic(self, inputs: dict[str, Any]) -> Prediction:
        output = self._model([inputs])[0]
        ids, segments = output["panoptic_seg"]
        by_class = isinstance(output, PanopticPrediction)
        scores = output.class_scores() if by_class else output["sem_seg"][:, None].unbind(0)
        labels, confidence = (found[0] for found in confident_argmax(scores))
        scores = torch.full((len(segments) + 1,), -1.0, device=ids.device)  # of each segment's id
        scores[0] = 0
        for segment in segments:
            if segment["isthing"]:
                scores[segment["id"]] = segment["score"]
        scores = scores[ids.long()]
        return Prediction(
            labels.cpu().numpy(),
            torch.where(scores < 0, confidence, scores).cpu().numpy(),
            ids.cpu().numpy(),
            tuple(segments),
            output["instances"].to("cpu"),
        )

    def _refined(self, found: Prediction, inputs: dict[str, Any]) -> Prediction:
        """Every pixel has label, segment and confidence of the one that it takes them from."""
        sources = self._refinement.sources(inputs).cpu()
        at = sources.numpy()
        labels, confidence = moved(found.labels, at), moved(found.confidence, at)
        if found.ids is None:
            return Prediction(labels, confidence)
        output = {
            "panoptic_seg": (torch.from_numpy(found.ids), found.segments),
            "instances": found.instances,
        }
        output = refine_output(output, sources)
        ids, segments = output["panoptic_seg"]
        return Prediction(labels, confidence, ids.numpy(), tuple(segments), output["instances"])
