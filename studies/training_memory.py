"""
Count the memory of a training step with fake tensors, which take up no memory themselves.

The count includes the tensors that PyTorch allocates. A GPU needs more memory: for CUDA itself,
cuDNN's work space, NCCL's buffers and gaps between tensors.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from ocr_panoptic.layers import bands

MOMENTA = {"SGD": 1, "AdamW": 2}  # SOLVER.OPTIMIZER -> tensors kept for each parameter


class AllocatedBytes(TorchDispatchMode):
    """
    A dispatch mode that counts the bytes of the tensors allocated while it is active.

    Attributes:
        current: number of bytes that are allocated and not yet freed.
        peak: maximum of ``current`` since :meth:`reset`.
        largest: number of bytes of the largest allocation.
        operations: number of additions and multiplications in convolutions and matrix products.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = self.peak = self.largest = self.operations = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        for tensor in tensors_of((args, kwargs)):
            self._known[tensor.untyped_storage()] = True  # allocated outside, or already counted
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
        """Set ``peak`` to ``current``, and return ``current``."""
        self.peak = self.current
        return self.current

    def _add(self, size: int) -> None:
        self.current += size
        self.peak = max(self.peak, self.current)
        self.largest = max(self.largest, size)


@contextlib.contextmanager
def counting() -> Iterator[AllocatedBytes]:
    """
    Make tensors fake in the ``with`` block, and count the bytes that real tensors would take.

    Layers that compute in bands of rows use the same band size as on a GPU.
    """
    with (
        FakeTensorMode(allow_non_fake_inputs=True),  # for models on the "meta" device
        patch.dict(bands.BAND_BYTES, cpu=bands.BAND_BYTES["cuda"]),
        AllocatedBytes() as allocated,
    ):
        yield allocated


class TrainingMemory(NamedTuple):
    """
    The memory of a training run, in bytes.

    Attributes:
        states: parameters, buffers, the optimizer's momenta, and MODEL.EMA's averaged weights.
        step: peak of all other bytes during a step, including gradients.
        operations: number (not bytes) of a step's additions and multiplications in convolutions and
            matrix products.
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
    Count the memory of a training step with a config's model and optimizer.

    A detector gets as many regions of interest as the config allows, all pooled from the finest
    features. Matching with the ground truth is left out.

    Args:
        cfg: config, which must set the numbers of classes and must not use SyncBN.
        images: number of images per process.
        height, width: padded size of the images.
        amp: whether to use mixed precision with bfloat16, as PyTorch does on a CPU (on a GPU, group
            norms run in float32).
    """
    # Built outside the mode, because timm's ConvNeXt reads values of its own tensors.
    with torch.device("meta"):
        model = META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE)(cfg).train()
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
    """Return sums of outputs of the RPN and the ROI heads, in place of their losses."""
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
