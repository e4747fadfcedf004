"""
Compare the time and memory of a complete inference on an image, part by part.

"panoptic" compares Detectron2's plain Panoptic-FPN with this package's Panoptic-FPN with OCR.
"hrnet", "hrnet18" and "resnet" compare the published code of a semantic network with this package's
code. This package's models run as trained, optimized for inference (in float32 and bfloat16), and
in onnxruntime (in float32 and int8).

    python benchmarks/whole_inference.py panoptic [--size 800 1216] [--output-size 480 729]
    python benchmarks/whole_inference.py hrnet [--size 1024 2048] [--classes 19] [--threads 1]
    python benchmarks/whole_inference.py resnet [--classes 150] [--ways optimized onnx]

All models run alternately in one process, on the same random image with the same random weights;
every time is the median of --repeats rounds. Other programs disturb CPU time less than wall time,
so both are shown. Memory is PyTorch's peak in addition to the model; onnxruntime's is not known.
ONNX files also resize the image, from the output size to the network's.

Score thresholds are 0 in the panoptic models, so that each model merges --instances instances. "As
trained" means TEST.OPTIMIZED False, and an OCR layer that does not split the image into bands of
rows. "As published" performs the operations of the published code: norms after convolutions, all
classes upsampled at once.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from unittest import mock

import detectron2.modeling.meta_arch.panoptic_fpn as detectron2_panoptic
import numpy as np
import torch
import torch.nn.functional as F
from detectron2.config import CfgNode
from detectron2.data import transforms as T
from detectron2.modeling import build_model
from tabulate import tabulate
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_layer import TranscribedOCR

from ocr_panoptic.config.files import load_config
from ocr_panoptic.layers import ConvNormReLU, ocr
from ocr_panoptic.modeling import deploy, inference_model, inference_output
from ocr_panoptic.modeling.context_head import ContextSemSegHead
from ocr_panoptic.modeling.inference_output import InferenceOutput
from ocr_panoptic.predict.run_info import machine_name
from ocr_panoptic.predict.run_onnx import FORMAT, Model
from ocr_panoptic.program import run_program
from ocr_panoptic.workbench.exporting.graphs import build_graph
from ocr_panoptic.workbench.exporting.onnx_file import write_onnx
from ocr_panoptic.workbench.exporting.quantizing import measure_grids, quantize
from studies.measurement import peak_memory

CONFIGS = Path(__file__).parents[1] / "configs"
Way = tuple[Callable[[], list[dict]], list[tuple[object, str, str]]]
Ways = dict[str, Callable[[], Way]]  # by name; a call prepares what is timed


class Clock:
    """A clock that measures the wall and CPU seconds of each part of a run, and of the rest."""

    REST = "labels and the rest"

    def __init__(self, parts: list[tuple[object, str, str]], device: str):
        self._parts, self._device = parts, device
        self.rounds: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def _now(self) -> tuple[float, float]:
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()

    def run(self, step: Callable[[], object]) -> None:
        spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

        def timed(function: Callable, part: str) -> Callable:
            def wrapper(*args, **kwargs):
                start = self._now()
                result = function(*args, **kwargs)
                for i, (a, b) in enumerate(zip(start, self._now())):
                    spent[part][i] += b - a
                return result

            return wrapper

        with contextlib.ExitStack() as stack:
            for owner, name, part in self._parts:
                wrapper = timed(getattr(owner, name), part)
                stack.enter_context(mock.patch.object(owner, name, wrapper))
            timed(step, "total")()
        named = [times for part, times in spent.items() if part != "total"]
        spent[self.REST] = [t - sum(times) for t, *times in zip(spent["total"], *named)]
        for part, times in spent.items():
            self.rounds[part].append(tuple(times))

    def median(self, part: str) -> tuple[float, float]:
        return tuple(map(statistics.median, zip(*self.rounds[part])))


@contextlib.contextmanager
def without_bands() -> Iterator[None]:
    with mock.patch.object(ocr, "PIXELS_OF_BAND", 2**62):
        yield


def calibrate(model: nn.Module) -> None:
    """
    Set the statistics of all norms to the values for a random image.

    An untrained network then has activations as large as a trained network's.
    """

    def measure(norm: nn.Module, inputs: tuple[Tensor]) -> None:
        variance, mean = torch.var_mean(inputs[0], dim=(0, 2, 3))
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)

    norms = [module for module in model.modules() if hasattr(module, "running_var")]
    hooks = [norm.register_forward_pre_hook(measure) for norm in norms]
    model([{"image": 255 * torch.rand(3, 256, 256)}])
    for hook in hooks:
        hook.remove()


def load(config: str, device: str, *opts: object) -> CfgNode:
    cfg = load_config(str(CONFIGS / config), ["MODEL.DEVICE", device, *map(str, opts)])
    for node in (cfg.MODEL.OCR, cfg.MODEL.RESNETS, cfg.MODEL.TIMM):
        node.NORM = node.NORM.replace("SyncBN", "BN")
    return cfg


def network_parts(model: nn.Module) -> list[tuple[object, str, str]]:
    # Not the head's ``forward``: in Detectron2, it also enlarges the logits, which is part of
    # computing the labels.
    parts = [(model.backbone, "forward", "backbone")]
    parts.append((model.sem_seg_head, "layers", "semantic head"))
    if hasattr(model, "roi_heads"):
        parts.append((model.proposal_generator, "forward", "RPN"))
        parts.append((model.roi_heads, "forward", "box and mask heads"))
    return parts


def post_parts(module: object, merge: str) -> list[tuple[object, str, str]]:
    return [(module, "detector_postprocess", "mask pasting"), (module, merge, "merge")]


def predicted(model: nn.Module, image: dict, part: str) -> list[InferenceOutput]:
    outputs = model([image])
    outputs[0][part]  # this computes the part
    return outputs


def panoptic_ways(args: argparse.Namespace) -> Ways:
    opts = ["MODEL.ROI_HEADS.SCORE_THRESH_TEST", 0.0]
    opts += ["MODEL.PANOPTIC_FPN.COMBINE.INSTANCES_CONFIDENCE_THRESH", 0.0]
    opts += ["TEST.DETECTIONS_PER_IMAGE", args.instances]
    opts += ["MODEL.ROI_HEADS.NUM_CLASSES", 80, "MODEL.SEM_SEG_HEAD.NUM_CLASSES", 54]
    folder = "COCO-PanopticSegmentation"
    torch.manual_seed(0)
    names = ["MODEL.META_ARCHITECTURE", "PanopticFPN", "MODEL.ROI_HEADS.NAME", "StandardROIHeads"]
    names += ["MODEL.ROI_MASK_HEAD.NAME", "MaskRCNNConvUpsampleHead"]
    cfg = load(f"{folder}/panoptic_fpn_R_50_3x.yaml", args.device, *opts, *names)
    plain = build_model(cfg).eval()
    cfg = load(f"{folder}/panoptic_fpn_ocr_R_50_3x.yaml", args.device, *opts)
    ours = build_model(cfg).eval()
    ours.load_state_dict(plain.state_dict(), strict=False)
    calibrate(ours)
    weights = {k: v for k, v in ours.state_dict().items() if k in plain.state_dict()}
    plain.load_state_dict(weights)
    cfg.MODEL.OCR.DOWNSAMPLE = 2
    at_stride_8 = build_model(cfg).eval()
    at_stride_8.load_state_dict(ours.state_dict())
    image = {"image": 255 * torch.rand(3, *args.size)}
    image.update(zip(("height", "width"), args.output_size))
    theirs = post_parts(detectron2_panoptic, "combine_semantic_and_instance_outputs")
    own = post_parts(inference_model, "merge_panoptic")

    def as_trained() -> list[dict]:
        with without_bands():
            return ours([image])

    def in_bfloat16() -> list[dict]:
        with torch.autocast(args.device, torch.bfloat16):
            return plain([image])

    def optimized(model: nn.Module, precision: str) -> Way:
        fast = deploy(model, precision)
        return lambda: predicted(fast, image, "panoptic_seg"), network_parts(fast.network) + own

    ways: Ways = {
        "Detectron2, no OCR": lambda: (lambda: plain([image]), network_parts(plain) + theirs),
        "Detectron2, bfloat16": lambda: (in_bfloat16, network_parts(plain) + theirs),
        "OCR, as trained": lambda: (as_trained, network_parts(ours) + theirs),
    }
    for stride, model in ((8, at_stride_8), (4, ours)):
        name = f"OCR at stride {stride}"
        ways |= {
            f"{name}, optimized": partial(optimized, model, "float32"),
            f"{name}, bfloat16": partial(optimized, model, "bfloat16"),
            **onnx_ways(name, model, cfg.INPUT.FORMAT, args, args.output_size),
        }
    return ways


def onnx_ways(
    name: str, model: nn.Module, order: str, args: argparse.Namespace, size: list[int]
) -> Ways:
    """Return the ways of a model in onnxruntime, on an image of the given height and width."""
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    folder = tempfile.TemporaryDirectory()

    @cache
    def export(folder: str) -> Path:
        file, description = Path(folder, "float32.onnx"), {"format": FORMAT, "classes": []}
        write_onnx(build_graph(model, order), T.Resize(tuple(args.size)), description, file)
        return file

    def run(is_int8: bool) -> Way:
        file, int8 = export(folder.name), Path(folder.name, "int8.onnx")
        if is_int8:
            quantize(file, int8, measure_grids(file, [image]))
        exported = Model(int8 if is_int8 else file, threads=args.threads)
        return lambda: [exported(image)], []

    return {f"{name}, onnx": partial(run, False), f"{name}, onnx int8": partial(run, True)}


def transcribed(model: nn.Module) -> Callable[[Tensor, tuple[int, int]], Tensor]:
    """Return a function that computes labels as the published code does, with a model's weights."""

    def plain(layer: ConvNormReLU) -> nn.Sequential:
        conv = nn.Conv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            padding=layer.padding,
            bias=False,
        )
        conv.weight = layer.weight
        return nn.Sequential(conv, layer.norm, nn.ReLU(inplace=True))

    head: ContextSemSegHead = model.sem_seg_head
    coarse = nn.Sequential(*(plain(m) if isinstance(m, ConvNormReLU) else m for m in head.coarse))
    bottleneck = plain(head.bottleneck)
    scheme = TranscribedOCR(head.bottleneck.out_channels, head.context.delta.out_channels)
    scheme.load_from(head.context)
    scheme.eval().to(head.bottleneck.weight.device)

    def labels(image: Tensor, size: tuple[int, int]) -> Tensor:
        stage, pixels = head.representations(model.backbone(image))
        regions = head.coarse_predictor(coarse(stage))
        x = bottleneck(pixels)
        logits = head.refined_predictor(scheme(x, regions))
        scores = F.interpolate(logits, size, mode="bilinear", align_corners=head.align_corners)
        return scores.argmax(dim=1)

    return labels


def semantic_ways(args: argparse.Namespace) -> Ways:
    hrnet = "ocr_HRNet_W48_s4_40k_bs8"
    config = {"hrnet": hrnet, "hrnet18": hrnet, "resnet": "ocr_R_101_d8_40k_bs8"}[args.network]
    opts = ["MODEL.TIMM.NAME", "hrnet_w18"] if args.network == "hrnet18" else []
    cfg = load(f"Cityscapes-SemanticSegmentation/{config}.yaml", args.device, *opts)
    cfg.MODEL.SEM_SEG_HEAD.update(NUM_CLASSES=args.classes, CLASS_WEIGHTS=[])
    torch.manual_seed(0)
    ours = build_model(cfg).eval()
    calibrate(ours)
    image = {"image": 255 * torch.rand(3, *args.size)}

    def as_published() -> Way:
        published = transcribed(ours)

        def step() -> list[dict]:
            normalised = ours.normalised(image["image"])[None]
            return [{"labels": published(normalised, tuple(args.size))[0]}]

        return step, network_parts(ours)[:1]

    def as_trained() -> list[dict]:
        with without_bands():
            return predicted(ours, image, "labels")

    def parts(model: nn.Module) -> list[tuple[object, str, str]]:
        return [*network_parts(model), (inference_output, "running_argmax", "resize and argmax")]

    def optimized(precision: str) -> Way:
        fast = deploy(ours, precision)
        return lambda: predicted(fast, image, "labels"), parts(fast.network)

    return {
        "as published": as_published,
        "as trained": lambda: (as_trained, parts(ours)),
        "optimized": partial(optimized, "float32"),
        "optimized, bfloat16": partial(optimized, "bfloat16"),
        **onnx_ways("optimized", ours, cfg.INPUT.FORMAT, args, args.size),
    }


@torch.no_grad()
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("network", choices=["panoptic", "hrnet", "hrnet18", "resnet"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", type=int, nargs=2, help="of the image that the network sees")
    parser.add_argument("--output-size", type=int, nargs=2, default=[480, 729])
    parser.add_argument("--classes", type=int, default=19, help="of the semantic networks")
    parser.add_argument("--instances", type=int, default=100, help="of the panoptic networks")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--ways", nargs="+", default=[""], metavar="TEXT", help="only ways with one of these texts"
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    args.size = args.size or ([800, 1216] if args.network == "panoptic" else [1024, 2048])
    print(
        f"{machine_name(args.device)}, torch {torch.__version__}, {args.network}, "
        f"{args.size[0]}x{args.size[1]}"
    )
    known = panoptic_ways(args) if args.network == "panoptic" else semantic_ways(args)
    named = {name: way for name, way in known.items() if any(text in name for text in args.ways)}
    ways = {name: prepare() for name, prepare in named.items()}
    for step, _ in ways.values():  # to warm up
        step()
    clocks = {name: Clock(parts, args.device) for name, (_, parts) in ways.items()}
    for _ in range(args.repeats):
        for name, (step, _) in ways.items():
            clocks[name].run(step)
    parts = dict.fromkeys(part for clock in clocks.values() for part in clock.rounds)
    parts = [part for part in parts if part not in ("total", Clock.REST)] + [Clock.REST, "total"]
    first, rows = next(iter(clocks.values())).median("total"), []
    for name, clock in clocks.items():
        times = [clock.median(part) if part in clock.rounds else None for part in parts]
        ratio = [t / f for t, f in zip(clock.median("total"), first)]
        is_torch = "onnx" not in name
        peak = peak_memory(ways[name][0], args.device) / 2**20 if is_torch else None
        cells = [f"{t[0]:.2f} ({t[1]:.2f})" if t else "" for t in (*times, ratio)]
        rows.append([name, *cells, f"{peak:.0f}" if peak else ""])
    headers = ["seconds of wall (CPU) time", *parts, "of the first", "peak MiB"]
    print(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    run_program(main)
