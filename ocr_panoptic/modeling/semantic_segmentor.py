"""The meta-architecture for semantic segmentation, and the class that SegFix shares with it."""

import math
from functools import partial
from typing import Any

from detectron2.config import CfgNode, configurable
from detectron2.modeling import META_ARCH_REGISTRY, SemanticSegmentor
from torch import Tensor

from ocr_panoptic.errors import UserError

from .context_head import ContextSemSegHead
from .hierarchical_scales import HierarchicalScales
from .inference import SemanticInference, check_decided, confident_argmax, padded_batch
from .inference_output import InferenceOutput, semantic_parts


class PaddedSegmentor(SemanticSegmentor):
    """
    Detectron2's ``SemanticSegmentor`` with inference in scales, flips and windows.

    Images are padded to multiples of ``pad_to_multiple``; 0 stands for the head's stride.

    Attributes:
        head: class of the head that the network needs.
    """

    head: type[Any]

    @configurable
    def __init__(self, *, inference: SemanticInference, pad_to_multiple: int = 0, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(self.sem_seg_head, self.head):
            raise UserError(
                f"MODEL.SEM_SEG_HEAD.NAME is {type(self.sem_seg_head).__name__}; "
                f"{type(self).__name__} needs {self.head.__name__}"
            )
        self.inference = inference
        self.divisor = math.lcm(
            self.backbone.size_divisibility or 1,
            pad_to_multiple or self.sem_seg_head.common_stride,
        )

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        return {**super().from_config(cfg), "pad_to_multiple": cfg.MODEL.PAD_TO_MULTIPLE}

    def normalised(self, image: Tensor) -> Tensor:
        return (image.to(self.device) - self.pixel_mean) / self.pixel_std

    def _images(self, batched_inputs: list[dict]) -> Tensor:
        images = [self.normalised(inputs["image"]) for inputs in batched_inputs]
        return padded_batch(images, self.divisor)


@META_ARCH_REGISTRY.register()
class OCRSemanticSegmentor(PaddedSegmentor):
    """
    A ``SemanticSegmentor`` with the inference that the paper's experiments need.

    Inference can return labels without storing the scores of all classes at full resolution. The
    class also supports hierarchical multi-scale attention, and context schemes that need the ground
    truth.
    """

    head = ContextSemSegHead

    @configurable
    def __init__(self, *, hierarchy: HierarchicalScales | None = None, **kwargs):
        super().__init__(**kwargs)
        self.hierarchy = hierarchy
        if self.sem_seg_head.context.needs_truth and (hierarchy or not self.sees_images_once):
            raise UserError(
                "The context scheme (MODEL.CONTEXT.NAME) uses the ground truth, which exists "
                "only at the image's original scale. Set TEST.SCALES [1.0], TEST.FLIP False, "
                "TEST.SLIDING_WINDOW.SIZE [] and MODEL.HMSA.ENABLED False."
            )

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        if cfg.MODEL.HMSA.ENABLED:
            hierarchy, inference = HierarchicalScales(cfg), SemanticInference(cfg, scales=(1.0,))
        else:
            hierarchy, inference = None, SemanticInference(cfg)
        return {**super().from_config(cfg), "inference": inference, "hierarchy": hierarchy}

    @property
    def sees_images_once(self) -> bool:
        """Whether the network sees a test image once, whole and at its own scale."""
        several = self.hierarchy is not None and len(self.hierarchy.scales) > 1
        return self.inference.sees_images_once and not several

    def forward(self, batched_inputs: list[dict]) -> dict[str, Tensor] | list[InferenceOutput]:
        """
        Return a dict of losses in training, else one :class:`.InferenceOutput` per image.

        Args:
            batched_inputs: mappings with "image" [3, H, W]. Training, and context schemes that use
                the ground truth, also need "sem_seg", int64 labels [H, W]. At inference, "height"
                and "width" can set the size of the predicted labels, by default the image's size.
        """
        if not self.training:
            return [self._output(inputs) for inputs in batched_inputs]
        images, targets = self._images(batched_inputs), self._targets(batched_inputs)
        if not self.hierarchy or targets is None:  # without targets the head raises the error
            return self.sem_seg_head(self.backbone(images), targets)[1]
        criterion = self.sem_seg_head.criterion
        return self.hierarchy.losses(self._scale, images, targets, criterion, self.divisor)

    def layers(self, batched_inputs: list[dict]) -> tuple[Tensor, Tensor]:
        """Return the coarse and the final logits [N, K, h, w] for the inputs of :meth:`forward`."""
        features = self.backbone(self._images(batched_inputs))
        return self.sem_seg_head.layers(features, self._targets(batched_inputs))

    def logits(self, image: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the final logits [N, K, h, w] of a normalised and padded image [N, 3, H, W]."""
        if self.hierarchy:
            return self.hierarchy.logits(self._scale, image, self.divisor)
        return self.sem_seg_head.layers(self.backbone(image), targets)[1]

    def _scale(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return coarse logits, refined logits and scale attention for images at a single scale."""
        return self.sem_seg_head.maps(self.backbone(image))

    def _output(self, inputs: dict) -> InferenceOutput:
        image = self.normalised(inputs["image"])
        height, width = image.shape[1:]
        size = (inputs.get("height", height), inputs.get("width", width))
        truth = self._targets([inputs]) if self.sem_seg_head.context.needs_truth else None
        logits = partial(self.logits, targets=truth)
        classes = self.inference(logits, image[None], size, self.divisor)
        if self.sees_images_once:
            return InferenceOutput(semantic_parts(classes))
        # Keep only labels and confidence: the sum over several views is K full-resolution maps.
        labels, confidence = confident_argmax(classes())
        check_decided(confidence)
        return InferenceOutput({"labels": labels[0], "confidence": confidence[0]})

    def _targets(self, batched_inputs: list[dict]) -> Tensor | None:
        if "sem_seg" not in batched_inputs[0]:
            return None
        targets = [inputs["sem_seg"].to(self.device) for inputs in batched_inputs]
        ignore = self.sem_seg_head.criterion.ignore_value
        return padded_batch(targets, self.divisor, ignore)
