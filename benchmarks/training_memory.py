"""
Compare the memory and time of a training step between the OCR head and Detectron2's plain head.

    python benchmarks/training_memory.py [--size 800 1344] [--timed-size 320 512] [--cards]
    python benchmarks/training_memory.py --recipes

Memory is counted at --size on tensors without values, so no GPU is needed. Times are measured on a
CPU at --timed-size, and gradients are compared in float64 at 64 x 96. --cards adds a table of how
many images fit on a GPU. --recipes prints instead what the paper's recipes take on 8 GPUs.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling.meta_arch.semantic_seg import SemSegFPNHead
from tabulate import tabulate
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.config.files import load_config
from ocr_panoptic.layers import resize
from ocr_panoptic.modeling import OCRSemSegFPNHead, losses
from ocr_panoptic.predict.run_info import machine_name
from studies.measurement import count_head_step, medians, seconds
from studies.training_memory import count_training_memory

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
CLASSES = 54
SHAPES = {f"p{i}": ShapeSpec(channels=256, stride=2**i) for i in range(2, 6)}
SHARE = 0.85  # of a GPU's memory, for tensors; CUDA, cuDNN, NCCL and gaps need the rest


def full_size_losses(
    logits: Tensor, targets: Tensor, ignore_value: int, align_corners: bool
) -> Tensor:
    """Return each pixel's cross-entropy, with the logits first resized to the targets' size."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logits = resize(logits, targets.shape[1:], align_corners)
    return F.cross_entropy(logits, targets, ignore_index=ignore_value, reduction="none")


# Name -> head, value of MODEL.OCR.RECOMPUTE, function that computes the loss of each pixel.
VARIANTS = {
    "Detectron2's plain head": (SemSegFPNHead, False, losses.pixel_cross_entropy),
    "OCR, losses at full size": (OCRSemSegFPNHead, False, full_size_losses),
    "OCR": (OCRSemSegFPNHead, False, losses.pixel_cross_entropy),
    "OCR, RECOMPUTE": (OCRSemSegFPNHead, True, losses.pixel_cross_entropy),
}


def with_loss_of(variant: str) -> AbstractContextManager:
    return patch.object(losses, "pixel_cross_entropy", VARIANTS[variant][2])


def load(name: str, *opts: object) -> CfgNode:
    cfg = load_config(str(CONFIGS / f"{name}.yaml"), ["MODEL.DEVICE", "cpu", *map(str, opts)])
    for part in (cfg.MODEL.OCR, cfg.MODEL.TIMM, cfg.MODEL.RESNETS):
        part.NORM = part.NORM.replace("SyncBN", "BN")
    return cfg


def build(variant: str) -> nn.Module:
    head, recompute, _ = VARIANTS[variant]
    cfg = load(
        "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x",
        *("MODEL.SEM_SEG_HEAD.NUM_CLASSES", CLASSES, "MODEL.OCR.RECOMPUTE", recompute),
    )
    torch.manual_seed(0)
    return head(cfg, SHAPES).train()


def make_input(height: int, width: int) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = {
        name: torch.randn(2, s.channels, height // s.stride, width // s.stride, generator=generator)
        for name, s in SHAPES.items()
    }
    return features, torch.randint(CLASSES, (2, height, width), generator=generator)


def make_step(
    variant: str, height: int, width: int, dtype: torch.dtype = torch.float32
) -> Callable[[], list[Tensor]]:
    """
    Return a function that runs a training step and returns gradients of parameters and features.

    Args:
        variant: name of the head in VARIANTS.
        height, width: size of the two images in the batch.
        dtype: type of weights and features.
    """
    head = build(variant).to(dtype)
    features, targets = make_input(height, width)
    features = {name: feature.to(dtype).requires_grad_() for name, feature in features.items()}

    def step() -> list[Tensor]:
        torch.manual_seed(1)  # for equal dropout
        leaves = [*head.parameters(), *features.values()]
        with with_loss_of(variant):
            loss = sum(head(features, targets)[1].values())
        return list(torch.autograd.grad(loss, leaves))

    return step


def heads(args: argparse.Namespace) -> None:
    steps = {name: make_step(name, *args.timed_size) for name in VARIANTS}
    for step in steps.values():
        step()
    wall = partial(seconds, device="cpu")
    times = dict(zip(steps, medians([*steps.values()], args.repeats, wall)))
    reference = "OCR, losses at full size"
    rows = []
    for name in VARIANTS:
        with with_loss_of(name):
            saved, peak = count_head_step(lambda name=name: build(name), 256, 2, *args.size)
        row = [name, f"{saved / 2**20:.0f}", f"{peak / 2**20:.0f}"]
        rows.append([*row, f"{times[name] / times[reference]:.2f}"])
    # In float64: in float32, a ReLU's input near 0 could be positive in only one head.
    gradients = [make_step(name, 64, 96, torch.float64)() for name in list(VARIANTS)[1:]]
    for row, found in zip(rows[1:], gradients):
        pairs = zip(found, gradients[0])
        difference = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
        row.append(f"{difference:.0e}")
    height, width = args.size
    headers = [f"2 images of {height} x {width}, float32", "kept for the backward pass (MiB)"]
    headers += ["highest point (MiB)", "time", "gradients differ by"]
    print(tabulate(rows, headers, "github", disable_numparse=True))


COCO = "COCO-PanopticSegmentation/panoptic_fpn"
COCO_CLASSES = ("MODEL.SEM_SEG_HEAD.NUM_CLASSES", CLASSES, "MODEL.ROI_HEADS.NUM_CLASSES", 80)
MOST, MEAN = (800, 1344), (768, 1024)  # COCO's largest and mean size of a batch of two images
ZOO_SECONDS = 0.302  # an iteration of COCO_R_50_3x on 8 V100, by Detectron2's model zoo


def cards() -> None:
    coco = COCO_CLASSES
    again = ("MODEL.OCR.RECOMPUTE", True)
    city = ("MODEL.SEM_SEG_HEAD.NUM_CLASSES", 19)
    panoptic, semantic = COCO, "Cityscapes-SemanticSegmentation"
    networks = [
        ("Panoptic-FPN R-50", f"{panoptic}_R_50_3x", coco, (800, 1344)),
        ("the same with OCR", f"{panoptic}_ocr_R_50_3x", coco, (800, 1344)),
        ("the same, RECOMPUTE", f"{panoptic}_ocr_R_50_3x", coco + again, (800, 1344)),
        ("Panoptic-FPN R-101", f"{panoptic}_R_101_3x", coco, (800, 1344)),
        ("the same with OCR", f"{panoptic}_ocr_R_101_3x", coco, (800, 1344)),
        ("the same, RECOMPUTE", f"{panoptic}_ocr_R_101_3x", coco + again, (800, 1344)),
        ("Cityscapes, R-101 + OCR", f"{semantic}/ocr_R_101_d8_40k_bs8", city, (776, 776)),
        ("the same, RECOMPUTE", f"{semantic}/ocr_R_101_d8_40k_bs8", city + again, (776, 776)),
        ("Cityscapes, HRNet-W48 + OCR", f"{semantic}/ocr_HRNet_W48_s4_40k_bs8", city, (772, 772)),
        ("the same, RECOMPUTE", f"{semantic}/ocr_HRNet_W48_s4_40k_bs8", city + again, (772, 772)),
        ("Cityscapes, HMSA", "HMSA/hmsa_HRNet_W48_cityscapes_65k_bs8", city, (1024, 2048)),
    ]
    rows = []
    for title, name, opts, size in networks:
        cfg = load(name, *opts)
        for amp in (False, True):
            two, three = (count_training_memory(cfg, n, *size, amp) for n in (2, 3))
            image = three.step - two.step
            fixed = two.total - 2 * image
            rows.append(
                [title, "mixed" if amp else "float32", f"{two.total / 2**20:.0f}"]
                + [f"{image / 2**20:.0f}"]
                + [max(0, int((SHARE * gib * 2**30 - fixed) / image)) for gib in (11, 24, 80)]
            )
    headers = ["network", "precision", "2 images (MiB)", "each more (MiB)"]
    print(tabulate(rows, [*headers, "11 GiB", "24 GiB", "80 GiB"], "github", disable_numparse=True))


CITY, ADE = "Cityscapes-SemanticSegmentation", "ADE20K-SemanticSegmentation"
RECIPES = {  # config -> height and width of a batch in training, padded
    **{f"{COCO}{name}_3x": MEAN for name in ("_R_50", "_ocr_R_50", "_R_101", "_ocr_R_101")},
    **{f"{CITY}/{name}_R_101_d8_40k_bs8": (776, 776) for name in ("plain", "ocr")},
    f"{CITY}/ocr_HRNet_W48_s4_40k_bs8": (772, 772),
    f"{CITY}/ocr_R_101_d8_trainval_100k_bs8": (776, 776),
    f"{CITY}/ocr_HRNet_W48_s4_trainval_100k_bs8": (772, 772),
    f"{ADE}/ocr_R_101_d8_150k_bs16": (520, 520),
    f"{ADE}/ocr_HRNet_W48_s4_150k_bs16": (520, 520),
    "LIP-SemanticSegmentation/ocr_R_101_d8_100k_bs32": (480, 480),
    "LIP-SemanticSegmentation/ocr_HRNet_W48_s4_100k_bs32": (476, 476),
    "PASCAL-Context-SemanticSegmentation/ocr_R_101_d8_30k_bs16": (520, 520),
    "PASCAL-Context-SemanticSegmentation/ocr_HRNet_W48_s4_30k_bs16": (520, 520),
    "COCO-Stuff-SemanticSegmentation/ocr_R_101_d8_10k_60k_bs16": (520, 520),
    "COCO-Stuff-SemanticSegmentation/ocr_HRNet_W48_s4_10k_60k_bs16": (520, 520),
    "Mapillary-SemanticSegmentation/ocr_HRNet_W48_s4_500k_bs16": (1024, 1024),
}


def recipes() -> None:
    counted = {}
    for name, size in RECIPES.items():
        cfg = load(name, *(COCO_CLASSES if name.startswith(COCO) else ()))
        images = cfg.SOLVER.IMS_PER_BATCH // 8
        most = MOST if size == MEAN else size
        totals = [count_training_memory(cfg, images, *most, amp).total for amp in (False, True)]
        operations = count_training_memory(cfg, images, *size).operations
        counted[name] = images, totals, operations, cfg.SOLVER.MAX_ITER
    speed = counted[f"{COCO}_R_50_3x"][2] / ZOO_SECONDS
    rows = [
        [f"`{name}`", images, *(f"{total / 2**30:.1f}" for total in totals)]
        + [f"{operations / 1e12:.1f}", f"{operations / speed:.2f}"]
        + [f"{iterations * operations / speed / 3600:.0f}"]
        for name, (images, totals, operations, iterations) in counted.items()
    ]
    headers = ["config", "images", "GiB", "mixed", "TFLOP", "s", "hours"]
    print(tabulate(rows, headers, "github", disable_numparse=True))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--size", type=int, nargs=2, default=[800, 1344])
    parser.add_argument("--timed-size", type=int, nargs=2, default=[320, 512])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cards", action="store_true", help="also count whole networks")
    parser.add_argument("--recipes", action="store_true", help="only count the paper's recipes")
    args = parser.parse_args(argv)
    if args.recipes:
        return recipes()
    print(f"{machine_name('cpu')}, torch {torch.__version__}\n")
    heads(args)
    if args.cards:
        print()
        cards()


if __name__ == "__main__":
    main()
