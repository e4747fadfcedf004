"""Parity: whether an ONNX file computes what its model computes.

Both round. A network that enlarges rounding, such as one with the norm of a channel that hardly
varies, may differ from itself in float64 by more than the limit; then the file may, too.

Shape shorthand: H W size of an image, K classes, h w feature size.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from detectron2.data import transforms as T
from PIL import Image
from torch import Tensor, nn

from ocr_panoptic.modeling import InferenceModel
from ocr_panoptic.modeling.inference_output import InferenceOutput

from .run_onnx import Model, Prediction

LEAST_SHARE = 0.9999
"""Of the pixels that have equal labels."""
LEAST_SHARE_INT8 = 0.9
"""Of the pixels, where the weights have 8 bits; trained networks keep 0.98 and more."""
LARGEST_DIFFERENCE = 1e-4
"""Of logits, relative to the largest one beyond 1, and of scores. Confidences, the softmax of the
logits, change by at most half of what these change."""
ROUNDING = 2.0
"""Of logits, if that is more: this many times the model's own difference from float64."""

SegmentInfo = dict[str, Any]
Segments = tuple[np.ndarray, list[SegmentInfo]]
"""ids [H, W], 0 where no segment is, and "id", "isthing", "category_id" of each."""

SIZES = ((128, 192), (97, 259), (480, 100), (201, 157), (417, 833))
"""(height, width) of the images that are compared; the network gets them resized as in tests."""


def check_parity(
    model: InferenceModel,
    exported: Model,
    semantic_logits: Callable[[nn.Module, list[dict]], Tensor],
    channel_order: str,
    augmentation: T.Augmentation,
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> list[dict[str, Any]]:
    """
    Compare the results of a model and of its ONNX file, on an image of each size.

    Args:
        model: of a network as it is trained, on the CPU.
        exported: the same, from its ONNX file.
        semantic_logits: (network, its input) -> the final logits [1, K, h, w].
        channel_order: of the model's input, "RGB" or "BGR".
        augmentation: how an image is resized in tests.
        sizes: see ``SIZES``.

    Returns:
        of each size "image" and "network", the sizes (height x width) of the image and of what the
        network gets; "labels equal" (share of the pixels), the largest differences of "logits" and
        "confidences", and "largest logit"; where that of the logits is above the limit "rounding",
        that of the model from itself in float64; of a panoptic model also "segments" of both,
        "segments equal" (share of the pixels), and the largest differences of "boxes" (pixels) and
        "scores" of those
    """
    rows, network = [], model.network
    for seed, size in enumerate(sizes):
        image = sample_image(size, seed)
        resized = T.AugInput(image if channel_order == "RGB" else image[:, :, ::-1])
        augmentation(resized)
        tensor = torch.as_tensor(resized.image.transpose(2, 0, 1).copy())
        inputs = [{"image": tensor, "height": size[0], "width": size[1]}]
        found = exported(image)
        with torch.no_grad():
            expected = model(inputs)[0]
            logits = semantic_logits(network, inputs)[0].numpy()
        row = {"image": "{}x{}".format(*size), "network": "{}x{}".format(*tensor.shape[1:])}
        rows.append(row | _compare(found, expected, logits))
        if rows[-1]["logits"] > LARGEST_DIFFERENCE:
            with torch.no_grad():
                exact = semantic_logits(
                    copy.deepcopy(network).double(), [{**inputs[0], "image": tensor.double()}]
                )[0].numpy()
            rows[-1]["rounding"] = _relative(logits, exact)
        if "instances" in expected:
            rows[-1] |= _compare_segments(found, expected)
    return rows


def parity_faults(row: dict[str, Any], precision: str = "float32") -> list[str]:
    """Return what of a row of :func:`check_parity` is beyond the limits, each with value and limit.

    Args:
        precision: "int8" asks for most of the labels, and for no NaN in the confidences.
    """
    least = LEAST_SHARE if precision == "float32" else LEAST_SHARE_INT8
    logits = max(LARGEST_DIFFERENCE, ROUNDING * row.get("rounding", 0.0))
    confidences = logits * max(1.0, row.get("largest logit", 0.0) / 2)
    limits = {"labels equal": least}
    if precision != "float32":
        limits["confidences"] = 1.0
    else:
        limits |= {"segments equal": least, "logits": logits}
        if "segments equal" in row:
            limits |= {"confidences": confidences, "scores": LARGEST_DIFFERENCE}
    faults = []
    for key, limit in limits.items():
        is_share = key.endswith("equal")
        if key in row and not (row[key] >= limit if is_share else row[key] <= limit):  # or NaN
            faults.append(
                f"{key} {row[key]:.6g} (at {'least' if is_share else 'most'} {limit:.6g})"
            )
    return faults


def sample_image(size: tuple[int, int], seed: int) -> np.ndarray:
    """Blots of colour under noise, uint8 [H, W, 3]."""
    generator = np.random.default_rng(seed)
    blots = generator.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(blots).resize(size[::-1], Image.Resampling.BICUBIC))
    return (smooth + generator.normal(0, 12, smooth.shape)).clip(0, 255).astype(np.uint8)


def _compare(found: Prediction, expected: InferenceOutput, logits: np.ndarray) -> dict[str, Any]:
    return {
        "labels equal": float((found["labels"] == expected["labels"].numpy()).mean()),
        "logits": _relative(found["logits"], logits),
        "confidences": _largest(found["confidences"], expected["confidence"].numpy()),
        "largest logit": float(np.abs(logits).max()),
    }


def _compare_segments(found: Prediction, expected: InferenceOutput) -> dict[str, Any]:
    instances, (ids, segments) = expected["instances"], expected["panoptic_seg"]
    share, pairs = match_segments((found["ids"], found["segments"]), (ids.numpy(), segments))
    things = [(a, b) for a, b in pairs if a["isthing"]]
    boxes = instances.pred_boxes.tensor.numpy()
    return {
        "segments": f"{len(found['segments'])}, {len(segments)}",
        "segments equal": share,
        "boxes": max((_largest(a["box"], boxes[b["instance_id"]]) for a, b in things), default=0.0),
        "scores": max((abs(a["score"] - b["score"]) for a, b in things), default=0.0),
    }


def match_segments(a: Segments, b: Segments) -> tuple[float, list[tuple[SegmentInfo, SegmentInfo]]]:
    """
    Return the share of the pixels that belong to segments which match, and these segments: of one
    class, and covering more of each other than of any other. Numbers do not count, since those of
    equal scores may change places.
    """
    tables, segments = [], []
    for ids, described in (a, b):
        segments.append({segment["id"]: segment for segment in described})
        table = np.full(max(ids.max(), *segments[-1], 0) + 1, -1)
        for segment in described:
            table[segment["id"]] = 2 * segment["category_id"] + segment["isthing"]
        tables.append(table)
    common = np.zeros([len(table) for table in tables], np.int64)
    np.add.at(common, (a[0].ravel(), b[0].ravel()), 1)
    common *= tables[0][:, None] == tables[1]
    best = (common == common.max(axis=0)) & (common == common.max(axis=1, keepdims=True))
    pairs = np.argwhere(best & (common > 0)).tolist()
    matched = [(segments[0][i], segments[1][j]) for i, j in pairs if i and j]
    return float((common * best).sum() / a[0].size), matched


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    return _largest(a, b) / max(1.0, float(np.abs(b).max()))


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    a = np.asarray(a)
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a.astype(np.float64) - b).max(initial=0))
