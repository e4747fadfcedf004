"""
Compares an ONNX file's results with the results of its PyTorch model.

Some networks amplify rounding errors, e.g. when a norm layer rescales a channel that hardly varies.
Therefore, the limit on differences of logits grows with the difference between the model's own
float32 and float64 logits.

Shape shorthand: H W size of an image, K classes, h w feature size.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from detectron2.data import transforms as T
from PIL import Image
from torch import Tensor, nn

from ocr_panoptic.data.image_input import ChannelInput
from ocr_panoptic.modeling import InferenceModel
from ocr_panoptic.modeling.inference_output import InferenceOutput
from ocr_panoptic.modeling.semantic_logits import semantic_logits
from ocr_panoptic.predict.run_onnx import Model, Prediction

LEAST_SHARE = 0.9999
"""Least share of pixels with equal labels and segments."""
LARGEST_DIFFERENCE = 1e-4
"""Limit on differences of scores, and of logits relative to max(1, largest logit).
Confidences, the softmax of the logits, change by at most half as much as the logits."""
ROUNDING = 2.0
"""Limit on differences of logits, as a multiple of the difference between the model's float32 and
float64 logits. The larger of the two limits applies."""

SegmentInfo = dict[str, Any]
Segments = tuple[np.ndarray, list[SegmentInfo]]
"""Segment ids [H, W], 0 outside all segments; and each segment's "id", "isthing", "category_id"."""

SIZES = ((128, 192), (97, 259), (480, 100), (201, 157), (417, 833))
"""(height, width) of the compared images, before they are resized as test images."""


def check_parity(
    model: InferenceModel,
    exported: Model,
    channel_order: str,
    augmentation: T.Augmentation,
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> list[dict[str, Any]]:
    """
    Compare a model with its ONNX file on a random image of each size; return the differences.

    Args:
        exported: the model's ONNX file.
        channel_order: INPUT.FORMAT of the model's images.
        augmentation: transform that resizes test images.
        sizes: (height, width) of each image.

    Returns:
        a row for each size, with the entries

        - "image", "network": height x width of the image and of the network's input
        - "equal labels": share of pixels with equal labels
        - "logits": largest difference of logits, relative to max(1, largest absolute logit)
        - "confidences": largest difference of confidences
        - "largest logit": the model's largest absolute logit
        - "rounding": relative difference between the model's float32 and float64 logits; only if
          "logits" is above the limit

        and, for a panoptic model, the entries

        - "segments": numbers of segments that the ONNX file and the model predict
        - "equal segments": share of pixels in matching segments
        - "boxes", "scores": largest differences of matching things (boxes in pixels)
    """
    rows, network = [], model.network
    for seed, size in enumerate(sizes):
        image = sample_image(size, seed)
        resized = ChannelInput(image if channel_order == "RGB" else image[:, :, ::-1])
        augmentation(resized)
        tensor = torch.as_tensor(resized.image.transpose(2, 0, 1).copy())
        inputs = [{"image": tensor, "height": size[0], "width": size[1]}]
        found = exported(image)
        with torch.no_grad():
            expected = model(inputs)[0]
            logits = final_logits(network, inputs)[0].numpy()
        row: dict[str, Any] = {
            "image": "{}x{}".format(*size),
            "network": "{}x{}".format(*tensor.shape[1:]),
            "equal labels": float((found["labels"] == expected["labels"].numpy()).mean()),
            "logits": _relative(found["logits"], logits),
            "confidences": _largest(found["confidences"], expected["confidence"].numpy()),
            "largest logit": float(np.abs(logits).max()),
        }
        if row["logits"] > LARGEST_DIFFERENCE:
            with torch.no_grad():
                inputs[0]["image"] = tensor.double()
                exact = final_logits(copy.deepcopy(network).double(), inputs)[0].numpy()
            row["rounding"] = _relative(logits, exact)
        if "instances" in expected:
            row |= _compare_segments(found, expected)
        rows.append(row)
    return rows


def final_logits(network: nn.Module, inputs: list[dict]) -> Tensor:
    """Return the logits from which a network computes its labels, float [1, K, h, w]."""
    logits = semantic_logits(network, inputs)
    return logits[1] if isinstance(logits, tuple) else logits  # (coarse, final)


def parity_faults(row: dict[str, Any]) -> list[str]:
    """Return an error text for each entry of a row of :func:`check_parity` beyond its limit."""
    logits = max(LARGEST_DIFFERENCE, ROUNDING * row.get("rounding", 0.0))
    confidences = logits * max(1.0, row.get("largest logit", 0.0) / 2)
    limits = {"equal labels": LEAST_SHARE, "equal segments": LEAST_SHARE, "logits": logits}
    if "equal segments" in row:
        limits |= {"confidences": confidences, "scores": LARGEST_DIFFERENCE}
    faults = []
    for key, limit in limits.items():
        is_share = key.startswith("equal")
        if key in row and not (row[key] >= limit if is_share else row[key] <= limit):  # or NaN
            at = "least" if is_share else "most"
            faults.append(f"{key} {row[key]:.6g} (at {at} {limit:.6g})")
    return faults


def sample_image(size: tuple[int, int], seed: int) -> np.ndarray:
    """Return a random picture of coloured blobs with noise, uint8 [H, W, 3]."""
    generator = np.random.default_rng(seed)
    blots = generator.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(blots).resize(size[::-1], Image.Resampling.BICUBIC))
    return (smooth + generator.normal(0, 12, smooth.shape)).clip(0, 255).astype(np.uint8)


def _compare_segments(found: Prediction, expected: InferenceOutput) -> dict[str, Any]:
    instances, (ids, segments) = expected["instances"], expected["panoptic_seg"]
    share, pairs = match_segments((found["ids"], found["segments"]), (ids.numpy(), segments))
    things = [(a, b) for a, b in pairs if a["isthing"]]
    boxes = instances.pred_boxes.tensor.numpy()
    return {
        "segments": f"{len(found['segments'])}, {len(segments)}",
        "equal segments": share,
        "boxes": max((_largest(a["box"], boxes[b["instance_id"]]) for a, b in things), default=0.0),
        "scores": max((abs(a["score"] - b["score"]) for a, b in things), default=0.0),
    }


def match_segments(a: Segments, b: Segments) -> tuple[float, list[tuple[SegmentInfo, SegmentInfo]]]:
    """
    Return the share of pixels in matching segments, and the pairs of matching segments.

    A segment of ``a`` and a segment of ``b`` match if, among the segments of their class, each has
    its largest overlap with the other. Pixels that are void in both maps count as matching.
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
