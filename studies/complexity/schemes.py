"""
Measure parameters, FLOPs, memory and time of the context schemes on one input.

The results correspond to the table "Complexity comparison" of :paper:`OCR`.

Shape letters: N images, K classes, and I channels, height h and width w of the features.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from detectron2.config import get_cfg
from tabulate import tabulate
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ocr_panoptic.config.keys import add_ocr_config
from ocr_panoptic.layers import ContextScheme, ConvNormReLU
from ocr_panoptic.modeling.context import build_context

from ..measurement import medians, peak_memory, seconds
from .transcriptions import CompactAttention, transcribed


@dataclass(frozen=True)
class PaperFigures:
    """A row of the OCR paper's table: millions of parameters, GFLOPs, MB of memory, time in ms."""

    parameters: float
    flops: int
    memory: int
    time: int


PAPER = {
    "PPM": PaperFigures(23.1, 619, 792, 99),
    "ASPP": PaperFigures(15.5, 492, 284, 97),
    "DANet": PaperFigures(10.6, 1110, 2339, 121),
    "CC-Attention": PaperFigures(10.6, 804, 427, 131),
    "Self-Attention": PaperFigures(10.5, 619, 2168, 96),
    "Double-Attention": PaperFigures(10.2, 338, 209, 46),
    "OCR": PaperFigures(10.5, 340, 202, 45),
}


class SchemeOfFeatures(nn.Module):
    """
    A context scheme that is applied to a backbone's features.

    A 3x3 convolution reduces the channels first, unless the scheme does so itself.
    """

    def __init__(self, name: str, in_channels: int):
        super().__init__()
        cfg = get_cfg()
        add_ocr_config(cfg)
        cfg.MODEL.CONTEXT.NAME = name
        cfg.MODEL.OCR.NORM = "BN"
        cfg.MODEL.OCR.TRANSFORM_CONVS = 1  # as in the paper's text, which agrees with its FLOPs
        self.scheme = build_context(cfg, in_channels)
        self.bottleneck = nn.Identity()
        if not self.scheme.takes_features:
            channels = cfg.MODEL.OCR.CHANNELS
            self.bottleneck = ConvNormReLU(in_channels, channels, kernel_size=3, norm="BN")
        self.eval()

    def forward(self, x: Tensor, m: Tensor, call=ContextScheme.__call__) -> Tensor:
        """
        Return the augmented representations for a backbone's features.

        Args:
            x: features of the backbone, [N, I, h, w]
            m: coarse logits [N, K, h, w]
            call: function that computes the result from the scheme, pixel representations and m

        Returns:
            z: augmented representations [N, C', h, w]
        """
        return call(self.scheme, self.bottleneck(x), m)


def count_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def count_flops(function: Callable[..., object], *args: object) -> int:
    """
    Return the FLOPs of ``function(*args)``, called without gradients.

    Only convolutions and matrix products count, as is usual: two FLOPs per multiply-accumulate.
    """

    def of_product(_, a: torch.Size, b: torch.Size, **kwargs: object) -> int:
        return 2 * a.numel() * b[-1]

    # PyTorch's counter knows neither in-place products nor the attention kernel of CPUs.
    in_place = {torch.ops.aten.baddbmm_: of_product}
    counter = FlopCounterMode(display=False, custom_mapping=in_place)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        function(*args)
    return counter.get_total_flops()


def count(name: str, size: Sequence[int], num_classes: int) -> dict:
    """
    Count the parameters and FLOPs of a context scheme without computing any values.

    Args:
        name: name of the scheme in MODEL.CONTEXT.NAME.
        size: shape (N, I, h, w) of the features.
        num_classes: number of classes, K; OCR has a region for each.

    Returns:
        "scheme" (the name), "parameters" (without the classifier and the coarse prediction),
        "flops" of the operations in the scheme's paper, and "flops_reduced" of this package's
        equivalent operations
    """
    with FakeTensorMode():
        module = SchemeOfFeatures(name, size[1])
        x, m = torch.empty(*size), torch.empty(size[0], num_classes, *size[2:])
        return {
            "scheme": name,
            "parameters": count_parameters(module),
            "flops": count_flops(module, x, m, transcribed),
            "flops_reduced": count_flops(module, x, m),
        }


def measure(
    names: Collection[str],
    size: Sequence[int],
    num_classes: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    repeats: int = 5,
) -> list[dict]:
    """
    Count parameters and FLOPs of context schemes, and measure memory and time on one input.

    The schemes are timed in turn, so that other programs on the machine affect all equally.

    Args:
        names: names of the schemes in MODEL.CONTEXT.NAME.
        size: shape (N, I, h, w) of the features.
        num_classes: number of classes, K; OCR has a region for each.
        device: "cpu" or "cuda".
        dtype: type of weights, features and coarse logits.
        repeats: number of timed forward passes of each scheme.

    Returns:
        a row for each scheme: the counts of :func:`count`, "peak_memory_bytes" of a forward pass,
        not counting weights and input, and "seconds", the median wall time of a forward pass
    """
    torch.manual_seed(0)
    x = torch.randn(*size, device=device, dtype=dtype)
    m = torch.randn(size[0], num_classes, *size[2:], device=device, dtype=dtype)

    modules = [SchemeOfFeatures(name, size[1]).to(device, dtype) for name in names]
    with torch.no_grad():
        steps = [partial(module, x, m) for module in modules]
        for step in steps:  # to warm up
            step()
        times = medians(steps, repeats, partial(seconds, device=device))
        return [
            {
                **count(name, size, num_classes),
                "peak_memory_bytes": peak_memory(step, device),
                "seconds": time,
            }
            for name, step, time in zip(names, steps, times, strict=True)
        ]


def complexity_table(rows: list[dict]) -> str:
    """Return a Markdown table of the rows of :func:`measure` and the OCR paper's numbers."""
    cells = [
        [
            row["scheme"],
            f"{row['parameters'] / 1e6:.2f}",
            f"{PAPER[row['scheme']].parameters:.1f}",
            f"{row['flops'] / 1e9:.1f}",
            PAPER[row["scheme"]].flops,
            f"{row['flops_reduced'] / 1e9:.1f}",
            f"{row['peak_memory_bytes'] / 2**20:.0f}",
            PAPER[row["scheme"]].memory,
            f"{1e3 * row['seconds']:.0f}",
            PAPER[row["scheme"]].time,
        ]
        for row in rows
    ]
    headers = ["scheme", "parameters (M)", "paper, table 6 (M)"]
    headers += ["GFLOP as in the papers", "paper, table 6 (G)", "GFLOP as computed here"]
    headers += ["peak memory (MiB)", "paper, table 6 (M)", "time (ms)", "paper, table 6 (ms)"]
    return _markdown(headers, cells)


def structures_table(size: Sequence[int]) -> str:
    """
    Return a Markdown table of the parameters and FLOPs of DANet and criss-cross attention.

    Each has three rows: its official head, a compact head, and the OCR paper's numbers (FLOPs of
    the official head, but parameters of the compact head).

    Args:
        size: shape (N, I, h, w) of the features.
    """
    cells = []
    for name in ("DANet", "CC-Attention"):
        official = count(name, size, num_classes=1)
        with FakeTensorMode():
            compact = CompactAttention(size[1], criss_cross=name == "CC-Attention").eval()
            counts = count_parameters(compact), count_flops(compact, torch.empty(*size))
        for structure, (parameters, flops) in (
            ("official head", (official["parameters"], official["flops"])),
            ("compact", counts),
        ):
            cells.append([name, structure, f"{parameters / 1e6:.2f}", f"{flops / 1e9:.1f}"])
        cells.append([name, "paper, table 6", PAPER[name].parameters, PAPER[name].flops])
    return _markdown(["scheme", "structure", "parameters (M)", "GFLOP"], cells)


def _markdown(headers: list[str], cells: list[list]) -> str:
    align = ["left" if isinstance(c, str) and not c[0].isdigit() else "right" for c in cells[0]]
    return tabulate(cells, headers, "github", disable_numparse=True, colalign=align)
