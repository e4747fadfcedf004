"""Facts about a run, such as its hardware and versions, for its result files."""

import functools
import hashlib
import platform
from pathlib import Path
from typing import Any

import detectron2
import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage, has_event_storage
from torch import nn

import ocr_panoptic
from ocr_panoptic.checkpoint.matching import OPTIONAL


def run_info(cfg: CfgNode, model: nn.Module, weights: str | None = None) -> dict[str, Any]:
    """
    Return the facts that are needed to reproduce a model's results.

    Args:
        weights: file of the model's weights; None for MODEL.WEIGHTS.
    """
    iteration = None
    if has_event_storage():  # its iterations count from 0, but end at MAX_ITER after training
        iteration = min(get_event_storage().iter + 1, cfg.SOLVER.MAX_ITER)
    anywhere = cfg.clone()
    anywhere.defrost()
    anywhere.OUTPUT_DIR = ""  # so that runs in other folders have the same hash
    started = {} if iteration is None else {"initial_weights": cfg.MODEL.WEIGHTS}
    return {
        "iteration": iteration,
        "seed": cfg.SEED,
        "config_sha256": hashlib.sha256(anywhere.dump().encode()).hexdigest(),
        "weights": cfg.MODEL.WEIGHTS if weights is None else weights,
        "weights_sha256": weights_sha256(model),
        **started,
        "output_dir": cfg.OUTPUT_DIR,
        "device": machine_name(cfg.MODEL.DEVICE),
        "precision": precision_of(cfg, model),
        "processes": comm.get_world_size(),
        "ocr_panoptic": ocr_panoptic.__version__,
        "detectron2": detectron2.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def weights_sha256(model: nn.Module) -> str:
    """
    Return the SHA-256 of a model's tensors, without batch counters, pixel mean and pixel std.

    An :class:`.InferenceModel` has the hash of the model from which it was made.
    """
    if made_of := getattr(model, "made_of", ""):
        return made_of
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        name = name.removeprefix("module.")  # DistributedDataParallel's prefix
        if not name.endswith(OPTIONAL):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def machine_name(device: str) -> str:
    """Return the name of the GPU, or the CPU's name and PyTorch's number of threads."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")  # has the CPU's name on Linux
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads > 1)}"


def precision_of(cfg: CfgNode, model: nn.Module) -> str:
    """Return the precision of a model's network; an ONNX file has its own."""
    network = getattr(model, "network", None)
    return getattr(network, "precision", None) or inference_precision(cfg)


def inference_precision(cfg: CfgNode) -> str:
    """
    Return TEST.PRECISION, with "auto" resolved for this machine.

    "auto" means bfloat16 if TEST.OPTIMIZED is True and the device is a CPU with instructions for
    bfloat16, else float32.
    """
    if cfg.TEST.PRECISION != "auto":
        return cfg.TEST.PRECISION
    # Half precision has not been measured on GPUs, so "auto" means float32 there.
    is_fast = cfg.TEST.OPTIMIZED and cfg.MODEL.DEVICE == "cpu" and cpu_computes_bfloat16()
    return "bfloat16" if is_fast else "float32"


def cpu_computes_bfloat16() -> bool:
    """Return whether the CPU has fast instructions for bfloat16: AVX512-BF16 or AMX."""
    return cpu_has("avx512_bf16", "amx_bf16")


@functools.cache
def cpu_has(*flags: str) -> bool:
    """Return whether the CPU has one of some flags; Linux lists them in /proc/cpuinfo."""
    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return not words.isdisjoint(flags)
