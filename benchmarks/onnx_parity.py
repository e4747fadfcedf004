"""
Compare the results of exported models in onnxruntime with the results of the PyTorch models.

The comparison covers every network with every context scheme that needs no ground truth, and models
with weights converted from the layouts of published code.

    python benchmarks/onnx_parity.py [--networks NAME ...] [--schemes NAME ...]
        [--published NAME ...]

Each table cell shows the worst results of three images (``SIZES``): the share of pixels with equal
labels (and, in a panoptic model, with equal segments), and the largest difference of the logits
(relative to the largest logit if this is above 1). All weights are random. Norms and biases are
fitted to an image, so that labels differ between pixels and instances are found. Weights in
published layouts are made by ``tests/support/published_networks.py`` and converted by
``convert_weights``.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from detectron2.config import CfgNode
from detectron2.data import transforms as T
from detectron2.modeling import build_model
from tabulate import tabulate
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from ocr_panoptic.checkpoint.conversion import convert_weights
from ocr_panoptic.config.files import load_config
from ocr_panoptic.modeling import deploy
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from ocr_panoptic.predict.run_info import machine_name
from ocr_panoptic.predict.run_onnx import FORMAT, Model
from ocr_panoptic.program import run_program
from ocr_panoptic.workbench.exporting.graphs import build_graph
from ocr_panoptic.workbench.exporting.onnx_file import write_onnx
from ocr_panoptic.workbench.exporting.parity import check_parity, parity_faults, sample_image
from support import published_networks as published
from support.published_files import FILES

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RESIZE, SIZES = T.ResizeShortestEdge(224, 512), ((193, 257), (512, 768), (200, 141))
"""How the images are resized, and their (height, width)."""

CITYSCAPES = "Cityscapes-SemanticSegmentation"
COCO = "COCO-PanopticSegmentation"
R_50 = ("MODEL.RESNETS.DEPTH", 50)
W18 = ("MODEL.TIMM.NAME", "hrnet_w18")
W18_COARSE = (*W18, "MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", 270)
FINDS = ("MODEL.ROI_HEADS.SCORE_THRESH_TEST", 0.2)

# Name -> (config, KEY VALUE ...)
NETWORKS: dict[str, tuple[str, tuple]] = {
    "semantic R-50": (f"{CITYSCAPES}/ocr_R_101_d8_40k_bs8.yaml", R_50),
    "semantic HRNet-W18": (f"{CITYSCAPES}/ocr_HRNet_W48_s4_40k_bs8.yaml", W18),
    "Panoptic-FPN R-50": (f"{COCO}/panoptic_fpn_ocr_R_50_1x.yaml", FINDS),
    "Panoptic-FPN HRNet-W18": (
        f"{COCO}/panoptic_fpn_ocr_R_50_1x.yaml",
        (*W18, *FINDS, "MODEL.BACKBONE.NAME", "build_timm_fpn_backbone"),
    ),
}
SCHEMES = [name for name, (cls, _) in CONTEXT_SCHEMES.items() if not cls.needs_truth]

# Name -> (layout, name in FILES, KEY VALUE ..., the published network, its options)
PUBLISHED: dict[str, tuple[str, str, tuple, Callable, dict]] = {
    "openseg.pytorch R-50": (
        *("openseg", "openseg_R_101_cityscapes", R_50),
        *(partial(published.openseg_resnet, depth=50), {"inplace_abn": True}),
    ),
    "openseg.pytorch HRNet-W18": (
        *("openseg", "openseg_cityscapes", W18_COARSE),
        *(partial(published.openseg_hrnet, small=False), {"inplace_abn": True}),
    ),
    "HRNet-OCR, W18": (
        *("hrnet", "hrnet_cityscapes", W18_COARSE),
        *(partial(published.hrnet_ocr, small=False), {}),
    ),
    "mmsegmentation R-50": (
        *("mmseg", "mmseg_R_101_cityscapes", R_50),
        *(partial(published.mmseg_resnet, depth=50), {}),
    ),
    "mmsegmentation HRNet-W18": (
        *("mmseg", "mmseg_HR18_cityscapes", ()),
        *(partial(published.mmseg_hrnet, small=False), {}),
    ),
}


def load(config: str, options: Iterable) -> CfgNode:
    base = ["MODEL.WEIGHTS", "", "MODEL.DEVICE", "cpu", "TEST.OPTIMIZED", False]
    opts = [str(o) for o in [*base, *options]]
    cfg = FILES[config].load(*opts) if config in FILES else load_config(str(CONFIGS / config), opts)
    for node in (cfg.MODEL.OCR, cfg.MODEL.RESNETS, cfg.MODEL.TIMM):
        node.NORM = "BN"
    return cfg


def fitted_model(cfg: CfgNode) -> nn.Module:
    """Return a model with random weights, and norms and biases fitted to a sample image."""
    torch.manual_seed(0)
    model = build_model(cfg)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    head, image = model.sem_seg_head, sample_image((320, 416), seed=9)
    x = torch.as_tensor(image.transpose(2, 0, 1).copy())
    with torch.no_grad():
        model.train()
        normalised = ((x - model.pixel_mean) / model.pixel_std)[None]
        final(head.layers(model.backbone(normalised)))
        model.eval()
        for norm in norms:  # else norms would enlarge values that are small only in this image
            norm.running_var.clamp_(min=1.0)
        features = model.backbone(normalised)
        head.refined_predictor.weight *= 3 / final(head.layers(features)).std()
        logits = final(head.layers(features))
        head.refined_predictor.bias -= logits.mean(dim=(0, 2, 3))
        if hasattr(model, "roi_heads"):  # makes some classes likely, but not certain
            scores, seen = model.roi_heads.box_predictor.cls_score, []
            hook = scores.register_forward_hook(lambda *call: seen.append(call[2].std()))
            model([{"image": x}])
            hook.remove()
            scores.weight *= 3 / seen[0]
    return model


def converted_model(cfg: CfgNode, layout: str, network: Callable, options: dict) -> nn.Module:
    """Return a model with weights converted from the layout of a published network."""
    model, weights = build_model(cfg).eval(), published.Weights(**options)
    image = torch.as_tensor(sample_image((128, 192), seed=9).transpose(2, 0, 1).copy())
    with torch.no_grad():
        network(weights, ((image - model.pixel_mean) / model.pixel_std)[None])
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    model.load_state_dict(convert_weights(weights.tensors, layout, shapes).weights)
    return model


def final(logits: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    return logits[1] if isinstance(logits, tuple) else logits


def export(cfg: CfgNode, model: nn.Module, path: Path, resize: T.Augmentation = RESIZE) -> None:
    """Write a model to an ONNX file without comparing results or storing class names."""
    description = {"format": FORMAT, "classes": []}
    write_onnx(build_graph(model, cfg.INPUT.FORMAT), resize, description, path)


def compare(name: str, cfg: CfgNode, model: nn.Module) -> list[dict]:
    """Compare a model with its ONNX file; return ``check_parity`` rows with ``name`` as "model"."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(cfg, model, path)
        rows = check_parity(
            deploy(model, optimize=False),
            Model(path, threads=torch.get_num_threads()),
            cfg.INPUT.FORMAT,
            RESIZE,
            SIZES,
        )
    for row in rows:
        row["model"] = name
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows


def cell(rows: list[dict]) -> str:
    """Return a cell's text: lowest share of equal pixels (%), and largest logit difference."""
    shares = [row[key] for row in rows for key in ("equal labels", "equal segments") if key in row]
    return f"{100 * min(shares):.4f}, {max(row['logits'] for row in rows):.0e}"


def main(argv: list[str] | None = None) -> int:
    """Print the table; return 1 if a result is beyond the limits of ``parity_faults``, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for kind, names in (("networks", NETWORKS), ("schemes", SCHEMES), ("published", PUBLISHED)):
        parser.add_argument(
            f"--{kind}", nargs="*", choices=names, default=list(names), metavar="NAME"
        )
    args = parser.parse_args(argv)
    print(f"{machine_name('cpu')}, torch {torch.__version__}")
    table, everything = [], []
    for scheme in args.schemes:
        found = []
        for network in args.networks:
            config, options = NETWORKS[network]
            cfg = load(config, [*options, "MODEL.CONTEXT.NAME", scheme])
            found.append(compare(f"{network}, {scheme}", cfg, fitted_model(cfg)))
        table.append([scheme, *map(cell, found)])
        everything += [row for rows in found for row in rows]
    converted = []
    for name in args.published:
        layout, config, options, *network = PUBLISHED[name]
        cfg = load(config, options)
        found = compare(name, cfg, converted_model(cfg, layout, *network))
        converted.append([name, cell(found)])
        everything += found
    print("% of the pixels that are equal, largest difference of the logits")
    print(tabulate(table, headers=["scheme", *args.networks], tablefmt="github"))
    print(tabulate(converted, headers=["converted weights", ""], tablefmt="github"))
    instances = [row for row in everything if "boxes" in row]
    for key in ("boxes", "scores"):
        print(f"{key}: {max((row[key] for row in instances), default=0):.0e} apart at most")
    different = [row for row in everything if parity_faults(row)]
    for row in different:
        print(f"not equal: {row}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(run_program(main))
