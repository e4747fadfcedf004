"""Exported models beside their PyTorch models: equality, time and memory, on a CPU.

    python benchmarks/onnx_inference.py [--models NAME ...] [--size 512 1024] [--threads 2]

Weights are random, norms and biases fitted to a sample image so that labels differ between pixels
and instances are found. Of equality the worst of three sizes is shown (``parity.SIZES``). Times are
medians, taken in turn in one process; memory is what a first run adds to a process that holds the
model, at its highest point, each in a process of its own (Linux).
"""

import argparse
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.modeling import build_model
from tabulate import tabulate
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.engine import load_config
from ocr_panoptic.engine.run_info import machine_name
from ocr_panoptic.engine.task import task_of
from ocr_panoptic.export import export_onnx
from ocr_panoptic.export.parity import sample_image
from ocr_panoptic.export.run_onnx import FORMAT, Model
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
BASE = ["MODEL.WEIGHTS", "", "MODEL.DEVICE", "cpu", "MODEL.OCR.NORM", "BN"]
QUICK_SEMANTIC = "quick_schedules/semantic_ocr_R_18_scenes.yaml"
QUICK_PANOPTIC = "quick_schedules/panoptic_fpn_ocr_R_18_scenes.yaml"
CITYSCAPES = "Cityscapes-SemanticSegmentation/ocr_R_101_d8_40k_bs8.yaml"
HRNET = "Cityscapes-SemanticSegmentation/ocr_HRNet_W48_s4_40k_bs8.yaml"
ADE20K = "ADE20K-SemanticSegmentation/ocr_R_101_d8_150k_bs16.yaml"
COCO = "COCO-PanopticSegmentation"
R_50 = ["MODEL.RESNETS.DEPTH", 50, "MODEL.RESNETS.NORM", "BN"]
W18 = ["MODEL.TIMM.NAME", "hrnet_w18", "MODEL.TIMM.NORM", "BN"]
FINDS = ["MODEL.ROI_HEADS.SCORE_THRESH_TEST", 0.2]
SMALL = ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", 9]
SCHEMES = [name for name, (cls, _) in CONTEXT_SCHEMES.items() if not cls.needs_truth]

# Name -> (config, KEY VALUE ...)
MODELS: dict[str, tuple[str, list]] = {
    "semantic R-50 + OCR": (CITYSCAPES, R_50),
    "semantic R-50 + OCR, K = 150": (ADE20K, R_50),
    "semantic HRNet-W18 + OCR": (HRNET, W18),
    "converted, mmsegmentation HRNet-W18-Small": ("converted/mmseg_HR18s_cityscapes.yaml", []),
    "converted, openseg.pytorch R-101": ("converted/openseg_R_101_cityscapes.yaml", []),
    "converted, HRNet-OCR, W18 for W48": ("converted/hrnet_HRNet_W48_cityscapes.yaml", W18),
    "Panoptic-FPN R-50 + OCR": (f"{COCO}/panoptic_fpn_ocr_R_50_1x.yaml", [*R_50, *FINDS]),
    "Panoptic-FPN R-50": (f"{COCO}/panoptic_fpn_R_50_1x.yaml", [*R_50, *FINDS]),
    **{
        f"semantic R-18 + {name}": (QUICK_SEMANTIC, [*SMALL, "MODEL.CONTEXT.NAME", name])
        for name in SCHEMES
    },
    **{
        f"Panoptic-FPN R-18 + {name}": (
            QUICK_PANOPTIC,
            [*SMALL, *FINDS, "MODEL.ROI_HEADS.NUM_CLASSES", 4, "MODEL.CONTEXT.NAME", name],
        )
        for name in SCHEMES
    },
}


def build(name: str) -> tuple[CfgNode, nn.Module]:
    """The model, random, in evaluation mode."""
    config, options = MODELS[name]
    cfg = load_config(str(CONFIGS / config), [str(o) for o in [*BASE, *options]])
    for node in (cfg.MODEL.RESNETS, cfg.MODEL.TIMM):
        node.NORM = "BN"
    torch.manual_seed(0)
    model = build_model(cfg)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    head, image = model.sem_seg_head, sample_image((320, 416), seed=9)
    x = torch.as_tensor(image.transpose(2, 0, 1).copy())[None]
    x = (x - model.pixel_mean) / model.pixel_std
    with torch.no_grad():
        model.train()
        final(head.layers(model.backbone(x)))
        model.eval()
        for norm in norms:  # it enlarges nothing: what is small on one image is noise on another
            norm.running_var.clamp_(min=1.0)
        features = model.backbone(x)
        predictor = getattr(head, "refined_predictor", getattr(head, "predictor", None))
        predictor.weight *= 3 / final(head.layers(features)).std()
        predictor.bias -= final(head.layers(features)).mean(dim=(0, 2, 3))
        if hasattr(model, "roi_heads"):  # some classes likely, none certain
            scores, seen = model.roi_heads.box_predictor.cls_score, []
            hook = scores.register_forward_hook(lambda *call: seen.append(call[2].std()))
            model([{"image": torch.as_tensor(image.transpose(2, 0, 1).copy())}])
            hook.remove()
            scores.weight *= 3 / seen[0]
    return cfg, model


def final(logits: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    return logits[1] if isinstance(logits, tuple) else logits


def describe(cfg: CfgNode, model: nn.Module) -> dict:
    """As little as the runner needs of classes that have no names."""
    description = {"format": FORMAT, "classes": [], "resize": None}
    if hasattr(model, "roi_heads"):
        rules = cfg.MODEL.PANOPTIC_FPN.COMBINE
        description["merge"] = {
            "overlap": rules.OVERLAP_THRESH,
            "stuff_area": rules.STUFF_AREA_LIMIT,
            "score": rules.INSTANCES_CONFIDENCE_THRESH,
        }
    return description


def equality(name: str, path: Path) -> list:
    """Exports the model; the worst of the sizes, the file's size and the time of the export."""
    cfg, model = build(name)
    start = time.perf_counter()
    rows = export_onnx(
        model,
        cfg.INPUT.FORMAT,
        describe(cfg, model),
        path,
        lambda inputs: final(task_of(cfg).semantic_logits(model, inputs)),
    )
    seconds = time.perf_counter() - start
    shares = [row[key] for row in rows for key in ("labels equal", "segments equal") if key in row]
    worst = [max(row.get(key, np.nan) for row in rows) for key in ("logits", "boxes", "scores")]
    return [name, 100 * min(shares), *worst, path.stat().st_size / 2**20, seconds]


def runs(name: str, path: Path, size: tuple[int, int], threads: int) -> dict:
    """The two ways from an image to its result, without arguments."""
    torch.set_num_threads(threads)
    _, model = build(name)
    image = sample_image(size, seed=0)
    inputs = [{"image": torch.as_tensor(image.transpose(2, 0, 1).copy())}]
    exported = Model(path, threads=threads)
    return {
        "PyTorch": torch.inference_mode()(lambda: model(inputs)),
        "onnxruntime": lambda: exported(image),
    }


def peak(name: str, path: Path, size: tuple[int, int], threads: int, way: str) -> float:
    """MiB."""
    run = runs(name, path, size, threads)[way]
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest point is now
    run()
    return resident("VmHWM") - before


def resident(what: str) -> float:
    """MiB of this process, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def costs(name: str, path: Path, size: tuple[int, int], threads: int, repeats: int) -> list:
    """Seconds and MiB of both ways."""
    ways = runs(name, path, size, threads)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(repeats + 1):
        for way, run in ways.items():
            start = time.perf_counter()
            run()
            if turn:  # the first warms up
                seconds[way].append(time.perf_counter() - start)
    memory = []
    for way in ways:
        with get_context("spawn").Pool(1) as pool:
            memory.append(pool.apply(peak, (name, path, size, threads, way)))
    times = [statistics.median(of_way) for of_way in seconds.values()]
    return [name, *times, times[1] / times[0], *memory]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--size", type=int, nargs=2, default=[512, 1024])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-times", action="store_true", help="equality alone")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    print(f"{machine_name('cpu')}, torch {torch.__version__}")
    equal, cost = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(args.models):
            path = Path(folder) / f"{number}.onnx"
            equal.append(equality(name, path))
            print(equal[-1], flush=True)
            if not args.no_times:
                cost.append(costs(name, path, tuple(args.size), args.threads, args.repeats))
                print(cost[-1], flush=True)
            path.unlink()
    headers = ["model", "% equal", "logits", "boxes", "scores", "MiB", "export s"]
    formats = ["", ".4f", ".1e", ".1e", ".1e", ".0f", ".0f"]
    print(tabulate(equal, headers=headers, floatfmt=formats, tablefmt="github"))
    if cost:
        headers = ["model", "PyTorch s", "onnxruntime s", "ratio", "PyTorch MiB", "onnxruntime MiB"]
        print(tabulate(cost, headers=headers, floatfmt=".2f", tablefmt="github"))


if __name__ == "__main__":
    main()
