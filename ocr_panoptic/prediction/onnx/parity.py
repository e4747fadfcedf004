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
from PIL import Image
from torch import Tensor, nn

from ocr_panoptic.modeling import InferenceModel
from ocr_panoptic.modeling.inference_output import InferenceOutput

from .run_onnx import Model, Prediction, merge

LEAST_SHARE = 0.9999
"""Of the pixels that have equal labels."""
LARGEST_DIFFERENCE = 1e-4
"""Of logits, of confidences and of scores; that of logits beyond 1 is relative to the largest."""
ROUNDING = 2.0
"""Of logits, if that is more: this many times the model's own difference from float64."""

Segments = tuple[np.ndarray, list[dict[str, Any]]]
"""ids [H, W], 0 where no segment is, and "id", "isthing", "category_id" of each."""

SIZES = (((128, 192), (256, 384)), ((97, 259), (97, 259)), ((201, 157), (119, 93)))
"""(height, width) of the images that the network gets, and of the results wanted."""


def check_parity(
    model: InferenceModel,
    exported: Model,
    semantic_logits: Callable[[nn.Module, list[dict]], Tensor],
    channel_order: str,
    sizes: Sequence[tuple[tuple[int, int], tuple[int, int]]] = SIZES,
) -> list[dict[str, Any]]:
    """
    Args:
        model: of a network as it is trained, on the CPU.
        exported: the same, from its ONNX file.
        semantic_logits: (network, its input) -> the final logits [1, K, h, w].
        channel_order: of the model's input, "RGB" or "BGR".
        sizes: see ``SIZES``.

    Returns:
        of each size "image" and "results" (height x width), "labels equal" (share of the pixels),
        and the largest differences of "logits" and "confidences"; where that of the logits is
        above the limit "rounding", that of the model from itself in float64; of a panoptic model
        also
        "instances" of both, the largest differences of "boxes" (pixels), "scores" and "masks", and
        "segments equal" (share of the pixels)
    """
    rows, network = [], model.network
    for seed, (side, size) in enumerate(sizes):
        image = sample_image(side, seed)
        pixels = image if channel_order == "RGB" else image[:, :, ::-1]
        tensor = torch.as_tensor(pixels.transpose(2, 0, 1).copy())
        inputs = [{"image": tensor, "height": size[0], "width": size[1]}]
        found = exported.run(image, size)
        with torch.no_grad():
            expected = model(inputs)[0]
            logits = semantic_logits(network, inputs)[0].numpy()
        row = {"image": "{}x{}".format(*side), "results": "{}x{}".format(*size)}
        rows.append(row | _compare(found, expected, logits))
        if rows[-1]["logits"] > LARGEST_DIFFERENCE:
            with torch.no_grad():
                exact = semantic_logits(
                    copy.deepcopy(network).double(), [{**inputs[0], "image": tensor.double()}]
                )[0].numpy()
            rows[-1]["rounding"] = _relative(logits, exact)
        if "instances" in expected:
            rows[-1] |= _compare_instances(found, expected, **exported.description["merge"])
    return rows


def is_equal(row: dict[str, Any]) -> bool:
    """Return whether a row of :func:`check_parity` is within the limits."""
    shares = [row[key] for key in ("labels equal", "segments equal") if key in row]
    is_panoptic = "segments equal" in row
    differences = [row[key] for key in ("confidences", "scores") if is_panoptic]
    return (
        min(shares) >= LEAST_SHARE
        and all(difference <= LARGEST_DIFFERENCE for difference in differences)  # no NaN
        and row["logits"] <= max(LARGEST_DIFFERENCE, ROUNDING * row.get("rounding", 0.0))
    )


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
    }


def _compare_instances(
    found: Prediction, expected: InferenceOutput, **rules: float
) -> dict[str, Any]:
    instances = expected["instances"]
    ids, segments = merge(found, **rules)
    true_ids, true_segments = expected["panoptic_seg"]
    boxes, scores = instances.pred_boxes.tensor.numpy(), instances.scores.numpy()
    row = {
        "instances": f"{len(found['scores'])}, {len(scores)}",
        "segments equal": segments_equal((ids, segments), (true_ids.numpy(), true_segments)),
        "boxes": np.nan,
        "scores": _largest(found["scores"], scores),
    }
    if len(boxes) and len(found["boxes"]):
        # Of the nearest one: boxes of equal scores may come in another order.
        apart = np.abs(found["boxes"][:, None] - boxes).max(axis=2)
        row["boxes"] = float(apart.min(axis=0).max())
    return row


def segments_equal(a: Segments, b: Segments) -> float:
    """
    The share of the pixels that belong to segments which match: of one class, and covering more of
    each other than of any other. Numbers do not count, since those of equal scores may change
    places.
    """
    tables = []
    for ids, segments in (a, b):
        table = np.full(ids.max() + 1, -1)
        for segment in segments:
            if segment["id"] < len(table):
                table[segment["id"]] = 2 * segment["category_id"] + segment["isthing"]
        tables.append(table)
    common = np.zeros([len(table) for table in tables], np.int64)
    np.add.at(common, (a[0].ravel(), b[0].ravel()), 1)
    common *= tables[0][:, None] == tables[1]
    best = (common == common.max(axis=0)) & (common == common.max(axis=1, keepdims=True))
    return float((common * best).sum() / a[0].size)


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    return _largest(a, b) / max(1.0, float(np.abs(b).max()))


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a.astype(np.float64) - b).max(initial=0))
