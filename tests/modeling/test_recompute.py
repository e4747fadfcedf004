"""MODEL.OCR.RECOMPUTE trains equally in less memory, at most the memory without OCR."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from detectron2.config import CfgNode
from detectron2.modeling import build_model
from detectron2.utils.events import EventStorage
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ocr_panoptic.engine import load_config
from ocr_panoptic.engine.accumulation import AccumulatingTrainer
from ocr_panoptic.engine.launch import leave_process_group
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from studies.measurement import saved_bytes
from studies.training_memory import count_training_memory
from support.segmentors import make_batch, make_cfg
from support.tiny_runs import CONFIGS

pytestmark = pytest.mark.slow

CLASSES = ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", "54", "MODEL.ROI_HEADS.NUM_CLASSES", "80"]


def make_pair(*opts: object) -> list[nn.Module]:
    """Make a network of timm's tests without and with recomputation."""
    models = []
    for recompute in (False, True):
        torch.manual_seed(0)
        models.append(build_model(make_cfg(*opts, "MODEL.OCR.RECOMPUTE", recompute)).train())
    return models


def state(model: nn.Module) -> list[torch.Tensor]:
    """Return the gradients and buffers."""
    return [*(p.grad for p in model.parameters()), *model.buffers()]


@pytest.mark.parametrize("scheme", list(CONTEXT_SCHEMES))
def test_every_scheme_trains_equally(scheme):
    """Losses, gradients and buffers are equal to the last digit, with dropout."""
    kept, states = [], []
    for model in make_pair("MODEL.CONTEXT.NAME", scheme):
        torch.manual_seed(1)
        for _ in range(2):
            losses, saved = saved_bytes(lambda model=model: model(make_batch()), without=model)
            sum(losses.values()).backward()
        kept.append(saved)
        states.append([*losses.values(), *state(model)])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert kept[1] < kept[0]


def test_accumulation_and_mixed_precision():
    models = make_pair()
    batch = make_batch() + make_batch()
    for model in models:
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        trainer = AccumulatingTrainer(model, [batch] * 2, optimizer, steps=2, amp=True)
        with EventStorage():
            for trainer.iter in range(2):
                trainer.run_step()
    states = [list(model.state_dict().values()) for model in models]
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def test_pytorchs_synchronised_norm():
    """PyTorch's norm does not train without its counter of batches."""
    states = []
    for model in make_pair("MODEL.OCR.NORM", "nnSyncBN"):
        assert any(type(module) is nn.SyncBatchNorm for module in model.modules())
        torch.manual_seed(1)
        sum(model(make_batch()).values()).backward()
        states.append(state(model))
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def train_process(rank: int, folder: Path, device: str) -> None:
    torch.set_num_threads(1)
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, f"file://{folder}/init", world_size=2, rank=rank)
    states = []
    norm = "SyncBN" if on_gpu else "naiveSyncBN"
    for model in make_pair("MODEL.OCR.NORM", norm, "MODEL.DEVICE", device):
        ids = [rank] if on_gpu else None
        model = DistributedDataParallel(model, device_ids=ids, broadcast_buffers=False)
        torch.manual_seed(rank)
        for _ in range(2):
            with torch.autocast(device, torch.float16, enabled=on_gpu):
                loss = sum(model(make_batch()[rank:][:1]).values())
            loss.backward()
        states.append([tensor.detach().cpu() for tensor in state(model)])
    torch.save((states, len([*model.parameters()])), folder / f"{rank}.pt")
    leave_process_group()


TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.parametrize(
    "device, tolerance", [("cpu", 0), pytest.param("cuda", 1e-3, marks=[pytest.mark.gpu, TWO_GPUS])]
)
def test_two_processes_with_synchronised_norms(tmp_path, device, tolerance):
    """
    Both networks have equal gradients and buffers, and both processes have equal gradients.

    Each process has its own running statistics in the backbone.
    """
    start_method = "spawn" if device == "cuda" else "fork"
    mp.start_processes(train_process, (tmp_path, device), nprocs=2, start_method=start_method)
    gradients = []
    for rank in range(2):
        states, count = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(*states, rtol=tolerance, atol=tolerance)
        gradients.append([state[:count] for state in states])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def coco_cfg(name: str, *opts: str) -> CfgNode:
    opts = ["MODEL.DEVICE", "cpu", *CLASSES, "MODEL.OCR.NORM", "BN", *opts]
    return load_config(str(CONFIGS / f"COCO-PanopticSegmentation/{name}.yaml"), opts)


@pytest.mark.parametrize("amp", [False, True])
def test_panoptic_fpn_with_ocr_needs_no_more_memory_than_without(amp):
    totals = []
    for name, opts in (
        ("panoptic_fpn_R_50_3x", ()),
        ("panoptic_fpn_ocr_R_50_3x", ("MODEL.OCR.RECOMPUTE", "True")),
    ):
        cfg = coco_cfg(name, *opts)
        totals.append(count_training_memory(cfg, 2, 800, 1344, amp).total)
    plain, ocr = totals
    assert ocr <= plain
