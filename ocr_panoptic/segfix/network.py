"""The meta-architecture of SegFix, which predicts offsets instead of classes."""

import torch
from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY
from torch import Tensor

from ocr_panoptic.formats.offsets import IGNORED, MIRRORED
from ocr_panoptic.layers.resize import resize
from ocr_panoptic.modeling.inference import SemanticInference, padded_batch
from ocr_panoptic.modeling.semantic_segmentor import PaddedSegmentor

from .head import SegFixHead

# Score channels that change places in a mirror image; channel 0 is the boundary.
MIRRORED_SCORES = tuple((1 + a, 1 + b) for a, b in MIRRORED)


@META_ARCH_REGISTRY.register()
class SegFix(PaddedSegmentor):
    """
    A network that finds the pixels near a boundary, and each pixel's direction into its region.

    See https://arxiv.org/abs/2007.04269. Boundary probabilities and direction logits are averaged
    over scales, flips and windows.
    """

    head = SegFixHead

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        inference = {**SemanticInference.from_config(cfg), "flip_pairs": MIRRORED_SCORES}
        return {**super().from_config(cfg), "inference": SemanticInference(**inference)}

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
        targets = [inputs["sem_seg"].to(self.device) for inputs in batched_inputs]
        features = self.backbone(self._images(batched_inputs))
        return self.sem_seg_head(features, padded_batch(targets, self.divisor, IGNORED))[1]

    def layers(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return boundary and direction logits of a normalised and padded image [N, 3, H, W]."""
        return self.sem_seg_head.layers(self.backbone(image))

    def _offsets(self, inputs: dict) -> dict[str, Tensor]:
        image = self.normalised(inputs["image"])[None]
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
