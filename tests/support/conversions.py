"""Small versions of published networks, with files of weights to convert."""

import functools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from detectron2.config import CfgNode
from torch import Tensor

from ocr_panoptic.cli import call
from support import published_networks as published
from support.loaded_configs import CONFIGS
from support.published_files import FILES

SMALL = ("MODEL.TIMM.NAME", "hrnet_w18_small_v2")
W18 = (*SMALL, "MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", "270")
R50 = ("MODEL.RESNETS.DEPTH", "50")
PLAIN = ("MODEL.OCR.NEGATIVE_SLOPE", "0.0")
ASP = ("MODEL.CONTEXT.NAME", "ASP-OCR")
ABN, NESTED = {"inplace_abn": True}, {"nested": True}


class Case(NamedTuple):
    config: str  # name in published_files.py
    opts: tuple[str, ...]  # KEY VALUE ... for this size
    network: Callable[..., tuple[Tensor, Tensor]]  # in published_networks.py
    norms: Mapping[str, bool] = {}  # options of the network's weights
    prefix: str = ""  # prefix of the parameter names in the file

    @property
    def source(self) -> str:  # the value of --from
        return self.config.partition("_")[0]


openseg_50 = partial(published.openseg_resnet, depth=50)
R_101 = "openseg_R_101_cityscapes"
CASES = {
    "hrnet W18, FullModel": Case("hrnet_cityscapes", W18, published.hrnet_ocr, prefix="model."),
    "hrnet W18, torch04": Case(
        *("hrnet_lip", W18, partial(published.hrnet_ocr, classes=20), ABN, "module.")
    ),
    "openseg R-50": Case(R_101, R50, openseg_50, ABN, "module."),
    "openseg R-50, ASP-OCR": Case(
        *(R_101, (*R50, *ASP), partial(openseg_50, asp=True), ABN, "module.")
    ),
    "openseg W18, ADE20K": Case(
        *("openseg_ade20k", W18, partial(published.openseg_hrnet, classes=150), ABN, "module.")
    ),
    "openseg W18, SyncBN": Case(
        *("openseg_cityscapes", (*W18, *PLAIN), published.openseg_hrnet, NESTED)
    ),
    "openseg W18, mixed norms": Case(
        *("openseg_cityscapes", (*W18, *PLAIN), published.openseg_hrnet, {**NESTED, "mixed": True})
    ),
    "mmseg HR18s": Case(*("mmseg_HR18s_ade20k", (), partial(published.mmseg_hrnet, classes=150))),
    "mmseg R-101": Case("mmseg_R_101_cityscapes", (), published.mmseg_resnet),
    "mmseg R-50": Case("mmseg_R_101_cityscapes", R50, partial(published.mmseg_resnet, depth=50)),
}


def load(name: str, *opts: str) -> CfgNode:
    """Return the config for the published file ``name`` (a key of ``FILES``), with overrides."""
    cfg = FILES[name].load("MODEL.DEVICE", "cpu", *opts)
    for node in (cfg.MODEL.OCR, cfg.MODEL.RESNETS, cfg.MODEL.TIMM, cfg.MODEL.SEGFIX):
        node.NORM = "BN"
    return cfg


def image(height: int = 65, width: int = 97) -> Tensor:
    return 255 * torch.rand(3, height, width, generator=torch.Generator().manual_seed(1))


def network_input(cfg: CfgNode, x: Tensor) -> Tensor:
    """Return the normalised image [1, 3, H, W], padded to multiples of MODEL.PAD_TO_MULTIPLE."""
    mean, std = torch.tensor(cfg.MODEL.PIXEL_MEAN), torch.tensor(cfg.MODEL.PIXEL_STD)
    bottom, right = (-side % (cfg.MODEL.PAD_TO_MULTIPLE or 1) for side in x.shape[1:])
    x = (x - mean[:, None, None]) / std[:, None, None]
    return F.pad(x, (0, right, 0, bottom))[None]


@functools.lru_cache(maxsize=1)
def _make_once(case: str) -> tuple[CfgNode, dict[str, Tensor], Tensor, tuple[Tensor, Tensor]]:
    this = CASES[case]
    cfg = load(this.config, *this.opts)
    x, weights = image(), published.Weights(**this.norms)
    with torch.no_grad():
        logits = this.network(weights, network_input(cfg, x))
    return cfg, weights.tensors, x, logits


def make(case: str) -> tuple[CfgNode, dict[str, Tensor], Tensor, tuple[Tensor, Tensor]]:
    """Return config, published state dict, image, and the published (coarse, final) logits."""
    cfg, *others = _make_once(case)
    return cfg.clone(), *others


def shapes_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def write(path: Path, tensors: dict[str, Any], prefix: str, wrap: bool = True) -> Path:
    tensors = {prefix + name: tensor for name, tensor in tensors.items()}
    torch.save({"state_dict": tensors, "meta": {"epoch": 3}} if wrap else tensors, path)
    return path


def convert(
    config: str,
    file: Path,
    output: Path | str,
    *opts: str,
    flags: tuple[str, ...] = (),
    source: str = "",
) -> None:
    """Call ``ocr-panoptic convert --from source`` with the config and keys of a published file."""
    published_file = FILES[config]
    arguments = ["--from", source or config.partition("_")[0], str(file), str(output), *flags]
    arguments += ["--config-file", str(CONFIGS / f"{published_file.recipe}.yaml")]
    call("convert", [*arguments, "--opts", *published_file.opts, *opts])
