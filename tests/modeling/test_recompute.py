"""MODEL.OCR.RECOMPUTE trains equally in less memory, at most the memory without OCR."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from detectron2.modeling import build_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ocr_panoptic.config.files import load_config
from ocr_panoptic.engine.launch import leave_process_group
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from studies.measurement import saved_bytes
from studies.training_memory import count_training_memory
from support.segmentors import make_batch, make_cfg
from support.tiny_runs import CONFIGS

pytestmark = pytest.mark.slow


def make_pair(*opts: object) -> list[nn.Module]:
    models = []
    for recompute in (False, True):
        torch.manual_seed(0)
        models.append(build_model(make_cfg(*opts, "MODEL.OCR.RECOMPUTE", recompute)).train())
    return models


def state(model: nn.Module) -> list[torch.Tensor]:
    return [*(p.grad for p in model.parameters()), *model.buffers()]


@pytest.mark.parametrize(
    "scheme, norm", [*((s, "BN") for s in CONTEXT_SCHEMES), ("OCR", "nnSyncBN")]
)
def test_every_scheme_trains_equally(scheme, norm):
    """PyTorch's synchronised norm (nnSyncBN) does not train without its counter of batches."""
    kept, states = [], []
    for model in make_pair("MODEL.CONTEXT.NAME", scheme, "MODEL.OCR.NORM", norm):
        torch.manual_seed(1)
        for _ in range(2):
            losses, saved = saved_bytes(lambda model=model: model(make_batch()), without=model)
            sum(losses.values()).backward()
        kept.append(saved)
        states.append([*losses.values(), *state(model)])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert kept[1] < kept[0]


def train_process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/init", world_size=2, rank=rank)
    states = []
    for model in make_pair("MODEL.OCR.NORM", "naiveSyncBN"):
        model = DistributedDataParallel(model, broadcast_buffers=False)
        torch.manual_seed(rank)
        for _ in range(2):
            sum(model(make_batch()[rank:][:1]).values()).backward()
        states.append([tensor.detach() for tensor in state(model)])
    torch.save((states, len([*model.parameters()])), folder / f"{rank}.pt")
    leave_process_group()


def test_two_processes_with_synchronised_norms(tmp_path):
    mp.start_processes(train_process, (tmp_path,), nprocs=2, start_method="fork")
    gradients = []
    for rank in range(2):
        states, count = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(*states, rtol=0, atol=0)
        gradients.append([state[:count] for state in states])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.parametrize("amp", [False, True])
def test_panoptic_fpn_with_ocr_needs_no_more_memory_than_without(amp):
    opts = ["MODEL.DEVICE", "cpu", "MODEL.OCR.NORM", "BN", "MODEL.OCR.RECOMPUTE", "True"]
    opts += ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", "54", "MODEL.ROI_HEADS.NUM_CLASSES", "80"]
    folder = CONFIGS / "COCO-PanopticSegmentation"
    plain, ocr = (
        count_training_memory(load_config(str(folder / name), opts), 2, 800, 1344, amp).total
        for name in ("panoptic_fpn_R_50_3x.yaml", "panoptic_fpn_ocr_R_50_3x.yaml")
    )
    assert ocr <= plain
