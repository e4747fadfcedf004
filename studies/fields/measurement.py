"""Measure the theoretical and effective receptive fields of a config's backbone."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.modeling import Backbone, build_backbone
from tabulate import tabulate
from torch import Tensor, nn

from ocr_panoptic.checkpoint import Demands, SafeCheckpointer
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.predict.single_image import model_input

from .effective import effective_fields, field_size, padded
from .receptive import receptive_boxes, receptive_sizes

NOISE_IMAGES = 20  # as in Luo et al.


def build_loaded_backbone(cfg: CfgNode) -> Backbone:
    """Return the backbone in evaluation mode on the CPU, with MODEL.WEIGHTS or random weights."""
    backbone = build_backbone(cfg)
    if cfg.MODEL.WEIGHTS:
        checkpointer = SafeCheckpointer(
            nn.ModuleDict({"backbone": backbone}),
            trust_pickle=cfg.MODEL.TRUST_PICKLE,
            demands=Demands(min_share=cfg.MODEL.WEIGHTS_MIN_SHARE),
        )
        checkpointer.load(cfg.MODEL.WEIGHTS, checkpointables=[])
    return backbone.eval()


def normalised(cfg: CfgNode, files: Sequence[Path]) -> Iterator[Tensor]:
    """Yield the backbone's test-time input for each image file: normalised, float32 [C, H, W]."""
    mean, deviation = (
        torch.tensor(values)[:, None, None]
        for values in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD)
    )
    for file in files:
        image = read_picture(file, cfg.INPUT.FORMAT, cfg.INPUT.CHANNELS)
        yield (model_input(cfg, image)["image"] - mean) / deviation


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> Iterator[Tensor]:
    """Yield NOISE_IMAGES images of standard normal noise, float32 [C, H, W]."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(NOISE_IMAGES):
        yield torch.randn(channels, height, width, generator=generator)


def measure_fields(
    backbone: Backbone, images: Iterable[Tensor], channels: int = 3
) -> list[dict[str, Any]]:
    """
    Measure the receptive fields of a backbone's features.

    Args:
        backbone: backbone in evaluation mode, on the CPU.
        images: normalised images [C, H, W] of equal size, for the effective fields.
        channels: number of channels of the images.

    Returns:
        a row for each feature: "feature" (the name) and "stride"; "theoretical", height and width
        of the theoretical field in pixels, or None if the field is unbounded; "effective", side of
        the effective field in pixels; "theoretical_share" and "effective_share", the shares of the
        image that the middle cell's theoretical and effective fields cover
    """
    fields = effective_fields(backbone, images)
    height, width = next(iter(fields.values())).shape
    sides = padded(torch.empty(channels, height, width, device="meta"), backbone).shape[1:]
    boxes = receptive_boxes(backbone, *sides, channels)
    sizes = receptive_sizes(backbone, channels)
    rows = []
    for name, shape in backbone.output_shape().items():
        size, effective = sizes[name], field_size(fields[name])
        rows.append(
            {
                "feature": name,
                "stride": shape.stride,
                "theoretical": None if math.isinf(size[0]) else [int(side) for side in size],
                "theoretical_share": math.prod(boxes[name].within(height, width).size)
                / (height * width),
                "effective": effective,
                "effective_share": effective**2 / (height * width),
            }
        )
    return rows


def fields_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of :func:`measure_fields` as a Markdown table."""
    cells = [
        {
            "features": row["feature"],
            "stride": row["stride"],
            "receptive field (pixels)": "{} x {}".format(*row["theoretical"] or "∞∞"),
            "of the image": f"{100 * row['theoretical_share']:.1f} %",
            "effective (pixels)": f"{row['effective']:.0f} x {row['effective']:.0f}",
            "of the image ": f"{100 * row['effective_share']:.1f} %",
        }
        for row in rows
    ]
    return tabulate(cells, headers="keys", tablefmt="github", disable_numparse=True)
