"""
The CPU does not wait for a GPU between the forward pass and the end of the backward pass.

Tensors without values raise an error if a value is asked for. If they claim to be on a GPU, their
backward pass needs a GPU, so the backward pass is tested on a CPU.
"""

from functools import partial

import pytest
import torch
from detectron2.modeling import META_ARCH_REGISTRY
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.cuda.amp import common
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from ocr_panoptic.modeling.losses import LOSSES
from support.segmentors import make_cfg, make_resnet_cfg, make_segfix_cfg, take_criterion

pytestmark = pytest.mark.slow

CASES = {
    "cross_entropy": {},
    "weights": {"class_weights": (1, 1, 1, 1, 3)},
    "ohem": {"loss_type": "ohem", "ohem_min_kept": 50},
    "ohem of all": {"loss_type": "ohem", "ohem_min_kept": 10**9},
    "ohem by threshold": {"loss_type": "ohem", "ohem_min_kept": 0},
    **{name: {"loss_type": name, "coarse_loss_type": name} for name in LOSSES},
    "sum": {"loss_type": "0.5 rmi + lovasz", "class_weights": (1, 1, 1, 1, 3)},
    "ohem and weights": {"loss_type": "ohem", "class_weights": (1, 1, 1, 1, 3)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_losses(case, device):
    with FakeTensorMode():
        with torch.device(device):
            criterion = take_criterion(dict(CASES[case]))
            coarse, refined = (torch.randn(2, 5, 100, 75, requires_grad=True) for _ in range(2))
            targets = torch.zeros(2, 400, 300, dtype=torch.long)
        losses = criterion(coarse, refined, targets)
        assert all(loss.device.type == device for loss in losses.values())
        if device == "cpu":
            sum(losses.values()).backward()


class NoCopies(TorchDispatchMode):
    """
    A mode that raises an error for a copy between devices, and for assignments to a mask.

    Fake tensors allow such assignments, but a GPU must count the mask's places, except for a number
    from the CPU.
    """

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        devices = {t.device for t in tree_leaves((args, found)) if isinstance(t, torch.Tensor)}
        if "copy" in name and len(devices) > 1:
            raise RuntimeError(f"{function} between {devices}")
        if name.startswith("index_put"):
            _, places, value, *_ = args
            masks = [p for p in places if p is not None and p.dtype == torch.bool]
            if masks and (value.device.type == "cuda" or value.numel() > 1):
                raise RuntimeError(f"{function} by a mask")
        return found


SCHEMES = {name: ("MODEL.CONTEXT.NAME", name) for name in CONTEXT_SCHEMES}
MODELS = {
    **{name: (make_cfg, *opts) for name, opts in SCHEMES.items()},
    "ResNet": (partial(make_resnet_cfg, 50),),
    "HMSA": (make_cfg, "MODEL.HMSA.ENABLED", True),
    "HMSA, ResNet": (partial(make_resnet_cfg, 50), "MODEL.HMSA.ENABLED", True),
    "RMI": (make_cfg, "MODEL.SEM_SEG_HEAD.LOSS_TYPE", "cross_entropy + rmi"),
    "SegFix": (make_segfix_cfg,),
    "unsupervised regions": (make_cfg, "MODEL.OCR.REGION_SUPERVISION", False),
    "recomputed": (make_cfg, "MODEL.OCR.RECOMPUTE", True),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_semantic_model_waits_for_nothing_and_copies_nothing(monkeypatch, device, name):
    """This holds in both passes in mixed precision, for a batch on the GPU."""
    monkeypatch.setattr(common, "amp_definitely_not_available", lambda: False)
    dtype = {"cpu": torch.bfloat16, "cuda": torch.float16}[device]
    make, *opts = MODELS[name]
    cfg = make(*opts, "MODEL.DEVICE", device)
    with FakeTensorMode():
        with torch.device(device):
            model = META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE)(cfg).train()
            images = [torch.zeros(3, *size, dtype=torch.uint8) for size in ((61, 83), (64, 80))]
            batch = [{"image": image, "sem_seg": image[0].long()} for image in images]
        with NoCopies(), torch.autocast(device, dtype):
            assert torch.is_autocast_enabled(device)
            losses = model(batch)
        assert {loss.device.type for loss in losses.values()} == {device}
        if device == "cpu":
            sum(losses.values()).backward()
