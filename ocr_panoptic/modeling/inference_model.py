"""Prepares a trained model for inference that takes less time and memory."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.layers import Conv2d
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from detectron2.modeling.postprocessing import detector_postprocess
from detectron2.structures import Instances
from timm.layers import Conv2dSame
from torch import Tensor, nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers.conv import ConvNormReLU
from ocr_panoptic.layers.folding import fold_norms, to_channels_last

from .inference import ClassMaps, check_decided, classes_at_once, confident_argmax
from .inference_output import InferenceOutput, semantic_parts
from .panoptic_augmentation import View, see_augmented
from .panoptic_merge import merge_panoptic, rules_of_network
from .panoptic_segmentor import PanopticSegmentor
from .refined_head import RefinedHead
from .timm_backbone import TimmBackbone
from .timm_parts import EvenConv2dSame, replace

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class InferenceModel(nn.Module):
    """
    A network prepared for inference by :func:`deploy`.

    Args:
        network: network of class ``PanopticSegmentor``, Detectron2's ``PanopticFPN``,
            ``OCRSemanticSegmentor`` or ``SegFix``.
        precision: precision in which autocast runs the network, a key of :data:`PRECISIONS`.
        confident: whether to compute each image's labels and confidence in one pass, which saves
            time if the caller reads both.
        made_of: hash of the trained model's weights.
    """

    def __init__(
        self,
        network: nn.Module,
        precision: str = "float32",
        confident: bool = False,
        made_of: str = "",
    ):
        super().__init__()
        if precision not in PRECISIONS:
            raise UserError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
        self.network: Any = network  # Detectron2 has no types
        # No isinstance: a user's subclass of Detectron2's class may compute something else.
        self._is_panoptic = type(network) in (PanopticFPN, PanopticSegmentor)
        self.precision, self.confident, self.made_of = precision, confident, made_of
        self.training = network.training  # an evaluation restores this mode

    @torch.no_grad()
    def forward(self, batched_inputs: list[dict]) -> list[InferenceOutput]:
        """
        Return an :class:`.InferenceOutput` for each input, or a dict if the network is ``SegFix``.

        Raises:
            FloatingPointError: scores of an image are not finite; the message lists the file names
                of the inputs.
        """
        try:
            with self._autocast():
                outputs = (self._panoptic if self._is_panoptic else self.network)(batched_inputs)
            for output in outputs:
                if self.confident and "confidence" in output:
                    output["confidence"]
        except FloatingPointError as error:
            names = [inputs["file_name"] for inputs in batched_inputs if "file_name" in inputs]
            raise FloatingPointError(": ".join([*names, str(error)])) from error
        return outputs

    @torch.inference_mode()
    def window_labels(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """
        Return the label and its probability at each pixel of a large image [C, H, W].

        The labels are int64 [H, W], the probabilities float32 [H, W], both on the CPU. They are
        bit-identical to the results of :meth:`forward`, but computed for one row of windows at a
        time. The config must set TEST.SLIDING_WINDOW, and TEST.SCALES to [1.0].
        """
        labels = torch.empty(image.shape[1:], dtype=torch.int64)
        confidence, top, network = torch.empty(image.shape[1:]), 0, self.network
        with self._autocast():
            for rows in network.inference.window_rows(
                network.logits, image[None], network.divisor, prepare=network.normalised
            ):
                groups = rows.split(classes_at_once(rows.device, *rows.shape[2:]), dim=1)
                (found,), (probability,) = confident_argmax(groups)
                check_decided(probability)
                bottom = top + len(found)
                labels[top:bottom], confidence[top:bottom] = found, probability
                top = bottom
        return labels, confidence

    def _autocast(self) -> torch.autocast:
        dtype = PRECISIONS[self.precision]
        return torch.autocast(self.network.device.type, dtype, enabled=dtype is not None)

    def _panoptic(self, batched_inputs: list[dict]) -> list[InferenceOutput]:
        """Return the outputs of a panoptic network, without upsampling all classes at once."""
        if cfg := getattr(self.network, "augmentation", None):
            return [self._augmented(cfg, inputs) for inputs in batched_inputs]
        outputs = []
        for inputs, view in zip(batched_inputs, self._views(batched_inputs), strict=True):
            height, width = view.image_size
            size = inputs.get("height", height), inputs.get("width", width)
            instances = detector_postprocess(view.found, *size)
            outputs.append(self._panoptic_output(partial(view.classes, size), instances))
        return outputs

    def _augmented(self, cfg: CfgNode, inputs: dict) -> InferenceOutput:
        def see(view: dict) -> View:
            return next(self._views([view]))

        total, instances = see_augmented(cfg, self.network, see, inputs)
        at_once = classes_at_once(total.device, *total.shape[2:])
        return self._panoptic_output(lambda: iter(total.split(at_once, dim=1)), instances)

    def _views(self, batched_inputs: list[dict]) -> Iterator[View]:
        model = self.network
        images = model.preprocess_image(batched_inputs)
        features = model.backbone(images.tensor)
        head = model.sem_seg_head
        logits = head.layers(features)
        if isinstance(head, RefinedHead):
            logits = logits[1]
        proposals, _ = model.proposal_generator(images, features, None)
        # The pooler needs contiguous maps, and would copy them twice, for boxes and for masks.
        features = {name: feature.contiguous() for name, feature in features.items()}
        detections, _ = model.roi_heads(images, features, proposals, None)
        covered = tuple(head.common_stride * side for side in logits.shape[2:])
        for one, found, size in zip(logits, detections, images.image_sizes):
            logits = one[None].float().contiguous()
            yield View(logits, tuple(size), covered, features, found)

    def _panoptic_output(self, classes: ClassMaps, instances: Instances) -> InferenceOutput:
        def merged(output: InferenceOutput) -> tuple[Tensor, list[dict]]:
            rules = rules_of_network(self.network)
            return merge_panoptic(output["instances"], output["labels"], rules)

        parts = {**semantic_parts(classes), "instances": instances, "panoptic_seg": merged}
        return InferenceOutput(parts)


def deploy(
    model: nn.Module, precision: str = "float32", *, optimize: bool = True, **options: Any
) -> InferenceModel:
    """
    Return a copy of a trained model that is faster at inference.

    The trained model is left unchanged and can be trained further. The two models share
    tensors, so the copy is valid only until the next optimizer step.

    - Batch norms and frozen norms are folded into the convolutions before them.
    - Convolutions use channels-last memory.
    - timm's SAME padding no longer depends on the image's size, if the model pads images to
      multiples of all strides of its backbone.
    - In half precision, weights are cast once instead of for each image.

    Args:
        model: trained model, not wrapped in DistributedDataParallel. If it is already an
            :class:`InferenceModel`, ``precision`` and ``optimize`` are ignored.
        precision: precision in which autocast runs the network, a key of :data:`PRECISIONS`.
        optimize: whether to optimize. If False, the result uses the trained network itself, in its
            current mode (training or evaluation).
        options: further arguments of :class:`InferenceModel`.
    """
    if isinstance(model, InferenceModel):
        options = {"made_of": model.made_of, **options}
        return InferenceModel(model.network, model.precision, **options)
    if not optimize:
        return InferenceModel(model, precision, **options)
    network = _shared_copy(model).eval()
    found = InferenceModel(network, precision, **options)
    for module in list(network.modules()):
        if isinstance(module, TimmBackbone):
            module.fold_norms()
    _pad_evenly(network)
    fold_norms(network)
    to_channels_last(network)
    if dtype := PRECISIONS[precision]:
        layers: list[Any] = [module for module in network.modules() if type(module) in CAST]
        for layer in layers:
            layer.weight = nn.Parameter(layer.weight.detach().to(dtype), requires_grad=False)
            # A ConvNormReLU may add its bias itself, in float32.
            if layer.bias is not None and type(layer) is not ConvNormReLU:
                layer.bias = nn.Parameter(layer.bias.detach().to(dtype), requires_grad=False)
    return found


# Modules that pass their weights directly to an operation that autocast runs in half precision.
CAST = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear, Conv2d, ConvNormReLU, Conv2dSame)


def evenly_padded(model: nn.Module) -> nn.Module:
    """
    Return a copy of a model in which timm's SAME padding does not depend on the image's size.

    The model must pad images to multiples of all strides of its backbone; otherwise the copy keeps
    timm's padding. The copy shares the model's tensors.
    """
    network = _shared_copy(model)
    _pad_evenly(network)
    return network


def _shared_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model, {id(t): t for t in (*model.parameters(), *model.buffers())})


def _pad_evenly(network: Any) -> None:
    for module in [m for m in network.modules() if isinstance(m, TimmBackbone)]:
        divisor = getattr(network, "divisor", network.backbone.size_divisibility)
        if divisor and all(divisor % s.stride == 0 for s in module.output_shape().values()):
            replace(module, Conv2dSame, EvenConv2dSame)
