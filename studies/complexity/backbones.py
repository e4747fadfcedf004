"""Compare parameters, FLOPs, time and memory of backbones and semantic heads."""

from collections.abc import Callable, Iterable

import torch
from detectron2.config import CfgNode
from detectron2.modeling import build_model
from tabulate import tabulate
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ocr_panoptic.modeling import deploy

from ..measurement import medians, peak_memory
from .schemes import count_flops, count_parameters


def measure_backbones(
    configs: Iterable[tuple[str, CfgNode]], size: tuple[int, int], repeats: int
) -> list[dict]:
    """
    Count models' parameters and FLOPs; measure time and memory if ``repeats`` is above 0.

    Args:
        configs: name and config of each model, semantic or panoptic.
        size: height and width of the image in pixels, before each model pads it.
        repeats: number of timed passes of each model.

    Returns:
        a row for each config: "config" and "backbone" (names), "parameters" and "flops" of the
        backbone with its FPN, "head_parameters" and "head_flops" of the semantic head,
        "instance_parameters" of the RPN and the ROI heads, "strides" of the features, and
        "multiple": images are padded to multiples of this number of pixels. If ``repeats`` is
        above 0, the row also has "cpu_seconds", the median CPU time (all threads) of a pass through
        backbone and semantic head, and "peak_memory_bytes", not counting weights and image
    """
    rows, steps = [], []
    for name, cfg in configs:
        torch.manual_seed(0)
        model = build_model(cfg).eval()
        rows.append({"config": name, "backbone": _network(cfg), **_count(model, size)})
        if repeats:
            steps.append(_make_step(cfg, model, size))
    peaks = [peak_memory(step, "cpu") for step in steps]
    for row, peak, time in zip(rows, peaks, medians(steps, repeats)):
        row.update(peak_memory_bytes=peak, cpu_seconds=time)
    return rows


def _count(model: nn.Module, size: tuple[int, int]) -> dict:
    """Return a model's parameters, FLOPs and strides, counted without computing any values."""
    backbone, head = model.backbone, model.sem_seg_head
    of_backbone, of_head, all_ = (count_parameters(part) for part in (backbone, head, model))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        image = _image(model, size)
        features = backbone(image)
        flops, head_flops = count_flops(backbone, image), count_flops(head.layers, features)
    return {
        "parameters": of_backbone,
        "flops": flops,
        "head_parameters": of_head,
        "head_flops": head_flops,
        "instance_parameters": all_ - of_backbone - of_head,
        "strides": sorted({shape.stride for shape in backbone.output_shape().values()}),
        "multiple": _multiple(model),
    }


def _make_step(cfg: CfgNode, model: nn.Module, size: tuple[int, int]) -> Callable[[], None]:
    model = deploy(model).network
    image = _image(model, size).to(memory_format=torch.channels_last)

    @torch.no_grad()
    def step() -> None:
        model.sem_seg_head.layers(model.backbone(image))

    return step


def _multiple(model: nn.Module) -> int:
    return getattr(model, "divisor", 0) or model.backbone.size_divisibility or 1


def _image(model: nn.Module, size: tuple[int, int]) -> torch.Tensor:
    multiple = _multiple(model)
    return torch.zeros(
        1, len(model.pixel_mean), *(-(-side // multiple) * multiple for side in size)
    )


def _network(cfg: CfgNode) -> str:
    if "timm" in cfg.MODEL.BACKBONE.NAME:
        return cfg.MODEL.TIMM.NAME
    return f"ResNet-{cfg.MODEL.RESNETS.DEPTH}"


def backbone_table(rows: list[dict]) -> str:
    """Return the rows of :func:`measure_backbones` as a Markdown table."""
    headers = ["config", "strides", "padded to", "backbone (M)", "semantic head (M)"]
    headers += ["instances (M)", "backbone (GFLOP)", "semantic head (GFLOP)"]
    cells = [
        [
            row["config"],
            "/".join(map(str, row["strides"])),
            row["multiple"],
            *(
                f"{row[key] / 1e6:.1f}"
                for key in ("parameters", "head_parameters", "instance_parameters")
            ),
            *(f"{row[key] / 1e9:.0f}" for key in ("flops", "head_flops")),
        ]
        for row in rows
    ]
    if rows and "cpu_seconds" in rows[0]:
        headers += ["CPU time (s)", "peak memory (MiB)"]
        for row, line in zip(rows, cells, strict=True):
            line += [f"{row['cpu_seconds']:.2f}", f"{row['peak_memory_bytes'] / 2**20:.0f}"]
    return tabulate(cells, headers, "github", disable_numparse=True)
