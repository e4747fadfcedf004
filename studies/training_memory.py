"""
Memory of a training step, counted on tensors that have shapes only: no GPU and no RAM is needed.

What is counted are the tensors that PyTorch allocates. A GPU holds more: CUDA itself, work space of
cuDNN, NCCL's buffers, gaps between tensors.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from detectron2.config import CfgNode
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from ocr_panoptic.layers import bands
from ocr_panoptic.modeling.build import build_network

MOMENTA = {"SGD": 1, "AdamW": 2}  # SOLVER.OPTIMIZER -> tensors of the size of a parameter


class AllocatedBytes(TorchDispatchMode):
    """
    Counts the storages that are made inside of it, and no longer those that are freed.

    Attributes:
        current, peak: bytes.
        largest: bytes of the largest single storage.
        operations: additions and multiplications of convolutions and matrix products.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = self.peak = self.largest = self.operations = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        for tensor in tensors_of((args, kwargs)):
            self._known[tensor.untyped_storage()] = True  # made outside, or counted already
        result = function(*args, **(kwargs or {}))
        if count := flop_registry.get(function._overloadpacket):
            self.operations += count(*args, **(kwargs or {}), out_val=result)
        for tensor in tensors_of(result):
            storage = tensor.untyped_storage()
            if storage not in self._known:
                self._known[storage] = True
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes())
        return result

    def reset(self) -> int:
        """Start the peak again from what there is, which is returned."""
        self.peak = self.current
        return self.current

    def _add(self, size: int) -> None:
        self.current += size
        self.peak = max(self.peak, self.current)
        self.largest = max(self.largest, size)


@contextlib.contextmanager
def counting() -> Iterator[AllocatedBytes]:
    """Tensors without values, allocated as on a GPU."""
    with (
        FakeTensorMode(allow_non_fake_inputs=True),  # models of the "meta" device
        patch.dict(bands.BAND_BYTES, cpu=bands.BAND_BYTES["cuda"]),
        AllocatedBytes() as allocated,
    ):
        yield allocated


class TrainingMemory(NamedTuple):
    """
    Bytes.

    Attributes:
        states: parameters, buffers, the optimizer's momenta, and the average of MODEL.EMA.
        step: the rest at the highest point of a step, gradients of the parameters included.
        operations: no bytes, but the additions and multiplications of convolutions and matrix
            products in a step.
    """

    states: int
    step: int
    operations: int

    @property
    def total(self) -> int:
        return self.states + self.step


def count_training_memory(
    cfg: CfgNode, images: int, height: int, width: int, amp: bool = False
) -> TrainingMemory:
    """
    Return the memory of one step of SOLVER.OPTIMIZER. A detector's proposals and regions of
    interest are as many as the config asks for and pooled from the finest features; matching with
    the ground truth is left out.

    Args:
        cfg: of a model, with numbers of classes and without SyncBN.
        images: of a process.
        height, width: of the images, padded.
        amp: mixed precision, by the rules of a CPU in bfloat16: on a GPU, group norms are in
            float32.
    """
    # Not among tensors without values: timm's ConvNeXt asks some of its own for theirs.
    with torch.device("meta"):
        model = build_network(cfg).train()
    with counting() as allocated:
        model.to_empty(device="cpu")
        parameters = list(model.parameters())
        trained = [p for p in parameters if p.requires_grad]
        states = [*parameters, *model.buffers()] * (2 if cfg.MODEL.EMA.ENABLED else 1)
        states += trained * MOMENTA[cfg.SOLVER.OPTIMIZER]
        before = allocated.reset()
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            loss = _loss(model, cfg, images, height, width)
        loss.backward()
        sizes = [state.untyped_storage().nbytes() for state in states]
    return TrainingMemory(sum(sizes), allocated.peak - before, allocated.operations)


def _loss(model: nn.Module, cfg: CfgNode, images: int, height: int, width: int) -> Tensor:
    batch = torch.empty(images, cfg.INPUT.CHANNELS, height, width)
    targets = torch.empty(images, height, width, dtype=torch.long)
    features = model.backbone(batch)
    _, losses = model.sem_seg_head(features, targets)
    terms = list(losses.values())
    if hasattr(model, "roi_heads"):
        terms += _detection_terms(model, cfg, features, images)
    return sum(terms)


def _detection_terms(
    model: nn.Module, cfg: CfgNode, features: dict[str, Tensor], images: int
) -> list[Tensor]:
    """A term of every output of the detector's parts, in the order of a training step."""
    proposals, heads = model.proposal_generator, model.roi_heads
    logits, deltas = proposals.rpn_head([features[name] for name in proposals.in_features])
    sampled = images * cfg.MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE
    positive = int(sampled * cfg.MODEL.ROI_HEADS.POSITIVE_FRACTION)
    finest = features[heads.box_in_features[0]].float()

    def pooled(count: int, size: int) -> Tensor:
        boxes = torch.empty(count, 5)
        return torch.ops.torchvision.roi_align(finest, boxes, 0.25, size, size, 0, True)

    box_features = heads.box_head(pooled(sampled, cfg.MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION))
    outputs = [*logits, *deltas, *heads.box_predictor(box_features)]
    if heads.mask_on:
        size = cfg.MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION
        outputs.append(heads.mask_head.layers(pooled(positive, size)))
    return [output.float().sum() for output in outputs]


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
