"""The meta-architecture of SegFix, which predicts offsets instead of classes."""

import math

import torch
from detectron2.config import CfgNode, configurable
from detectron2.modeling import META_ARCH_REGISTRY, SemanticSegmentor
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.offsets import IGNORED, MIRRORED
from ocr_panoptic.layers.resize import resize
from ocr_panoptic.modeling.inference import SemanticInference, padded_batch

from .head import SegFixHead

# Score channels that change places in a mirror image; channel 0 is the boundary.
MIRRORED_SCORES = tuple((1 + a, 1 + b) for a, b in MIRRORED)


@META_ARCH_REGISTRY.register()
class SegFix(SemanticSegmentor):
    """
    A network that finds the pixels near a boundary, and each pixel's direction into its region.

    See https://arxiv.org/abs/2007.04269. Boundary probabilities and direction logits are averaged
    over scales, flips and windows.

    Images are padded to multiples of ``pad_to_multiple``; 0 stands for the head's stride.
    """

    @configurable
    def __init__(self, *, inference: SemanticInference, pad_to_multiple: int = 0, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(self.sem_seg_head, SegFixHead):
            raise UserError(
                f"MODEL.SEM_SEG_HEAD.NAME is {type(self.sem_seg_head).__name__}; SegFix "
                "needs SegFixHead"
            )
        self.inference = inference
        self.divisor = math.lcm(
            self.backbone.size_divisibility or 1,
            pad_to_multiple or self.sem_seg_head.common_stride,
        )

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        inference = {**SemanticInference.from_config(cfg), "flip_pairs": MIRRORED_SCORES}
        return {
            **super().from_config(cfg),
            "inference": SemanticInference(**inference),
            "pad_to_multiple": cfg.MODEL.PAD_TO_MULTIPLE,
        }

    def forward(self, batched_inputs: list[dict]) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """
        Return a dict of losses in training, else the predictions for each image.

        Args:
            batched_inputs: mappings with "image" [3, H, W]. Training also needs the offset
                labels "sem_seg", int64 [H, W]. At inference, "height" and "width" can set the size
                of the result, by default the size of the image.

        Returns:
            the losses; or a list with a dict for each image: "near_boundary", bool [height, width],
            and "direction", int64 [height, width] in 0..7, defined at every pixel
        """
        if not self.training:
            return [self._offsets(inputs) for inputs in batched_inputs]
        images = [self._normalised(inputs["image"]) for inputs in batched_inputs]
        targets = [inputs["sem_seg"].to(self.device) for inputs in batched_inputs]
        features = self.backbone(padded_batch(images, self.divisor))
        return self.sem_seg_head(features, padded_batch(targets, self.divisor, IGNORED))[1]

    def layers(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return boundary and direction logits of a normalised and padded image [N, 3, H, W]."""
        return self.sem_seg_head.layers(self.backbone(image))

    def _offsets(self, inputs: dict) -> dict[str, Tensor]:
        image = self._normalised(inputs["image"])[None]
        height, width = image.shape[2:]
        size = (inputs.get("height", height), inputs.get("width", width))
        scores = self.inference.scores(self._scores, image, size, self.divisor)[0]
        return {"near_boundary": scores[0] > 0.5, "direction": scores[1:].argmax(dim=0)}

    def _scores(self, image: Tensor) -> Tensor:
        """Return boundary probabilities and direction logits in one tensor [N, 1 + 8, H, W]."""
        boundary, direction = (
            resize(logits.float(), image.shape[2:], self.sem_seg_head.align_corners)
            for logits in self.layers(image)
        )
        return torch.cat([boundary.softmax(dim=1)[:, 1:], direction], dim=1)

    def _normalised(self, image: Tensor) -> Tensor:
        return (image.to(self.device) - self.pixel_mean) / self.pixel_std
