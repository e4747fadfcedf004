"""
Compare time and memory of ways to compute full-resolution labels from low-resolution logits.

The logits come from a dilated ResNet-101 with OCR.

    python benchmarks/semantic_inference.py [--device cpu|cuda] [--size 1024 2048] [--classes 19]

There are three ways from logits at stride 8 to labels:

- Detectron2's: its heads upsample, its ``sem_seg_postprocess`` resizes to the image's own size,
  and its evaluator takes the argmax;
- one ``interpolate`` of all classes, then argmax;
- ``resized_classes`` and ``running_argmax`` of this package.

The labels should agree on all pixels, except where two classes have equal float32 scores:
Detectron2's labels can differ there, because Detectron2 resizes twice.

Weights are random; neither time nor memory depends on them. Memory is PyTorch's peak in addition to
the model and the image. "Peak MiB of the whole" is the peak of the network or the peak of the step
from logits to labels, whichever is larger. With many classes, computing one class at a time lowers
this peak.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from detectron2.modeling import build_model
from detectron2.modeling.postprocessing import sem_seg_postprocess
from tabulate import tabulate
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.config.files import load_config
from ocr_panoptic.modeling.inference import resized_classes, running_argmax
from ocr_panoptic.predict.run_info import machine_name
from studies.measurement import medians, peak_memory, seconds

CONFIG = (
    Path(__file__).parents[1] / "configs/Cityscapes-SemanticSegmentation/ocr_R_101_d8_40k_bs8.yaml"
)
Size = tuple[int, int]


def build(num_classes: int, device: str) -> nn.Module:
    """Return the paper's semantic segmentor (ResNet-101, stride 8) with random weights."""
    cfg = load_config(
        str(CONFIG),
        ["MODEL.DEVICE", device, "MODEL.RESNETS.NORM", "BN", "MODEL.OCR.NORM", "BN"],
    )
    cfg.MODEL.SEM_SEG_HEAD.update(NUM_CLASSES=num_classes, CLASS_WEIGHTS=[])
    torch.manual_seed(0)
    return build_model(cfg).eval()


def detectron2_labels(logits: Tensor, size: Size) -> Tensor:
    """Compute labels [H, W] from logits [1, K, h, w] in the same steps as Detectron2."""
    scores = F.interpolate(logits, size=size, mode="bilinear", align_corners=False)
    return sem_seg_postprocess(scores[0], size, *size).argmax(dim=0)


def interpolated_labels(logits: Tensor, size: Size) -> Tensor:
    scores = F.interpolate(logits, size=size, mode="bilinear", align_corners=False)
    return scores[0].argmax(dim=0)


WAYS: dict[str, Callable[[Tensor, Size], Tensor]] = {
    "Detectron2's": detectron2_labels,
    "all classes, argmax": interpolated_labels,
    "one class at a time": lambda logits, size: running_argmax(resized_classes(logits, size))[0],
}


@torch.inference_mode()
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", type=int, nargs=2, default=[1024, 2048])
    parser.add_argument("--classes", type=int, default=19)
    parser.add_argument("--repeats", type=int, default=5, help="of the upsampling")
    args = parser.parse_args(argv)
    size = tuple(args.size)
    print(
        f"{machine_name(args.device)}, torch {torch.__version__}, image {size[0]}x{size[1]}, "
        f"K = {args.classes}"
    )
    model = build(args.classes, args.device)
    image = torch.randn(1, 3, *size, device=args.device)

    def network() -> Tensor:
        return model.sem_seg_head.layers(model.backbone(image))[1]

    logits = network()  # also warms up
    peak = peak_memory(network, args.device)
    rows = [["the network", None, 1e3 * seconds(network, args.device), peak, peak]]
    for name, way in WAYS.items():
        step = partial(way, logits, size)
        differing = (step() != interpolated_labels(logits, size)).sum().item()
        memory = peak_memory(step, args.device)
        (time,) = medians([step], args.repeats, partial(seconds, device=args.device))
        whole = max(peak, logits.nbytes + memory)
        rows.append([f"to labels: {name}", differing, 1e3 * time, memory, whole])
    rows = [row[:3] + [memory / 2**20 for memory in row[3:]] for row in rows]
    headers = ["", "pixels that differ", "ms", "peak MiB", "peak MiB of the whole"]
    print(tabulate(rows, headers=headers, floatfmt=".0f"))


if __name__ == "__main__":
    main()
