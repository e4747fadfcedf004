"""
Hierarchical multi-scale attention for a semantic network.

The network sees the image at several scales. At each scale, it predicts the weight of that scale's
logits at each pixel.

Shape shorthand: N images; K classes; H, W size of the input images.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from detectron2.config import CfgNode, configurable
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers.resize import resize
from ocr_panoptic.layers.scale_attention import blend_scales

from .inference import pad_to_multiple
from .losses import SemSegCriterion

# Scales in training, in the published order; TEST.SCALES can differ.
TRAINING_SCALES = (0.5, 1.0)

# Images [N, 3, H, W] -> coarse logits, refined logits and attention, each with its own size.
Network = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class HierarchicalScales:
    """
    Hierarchical multi-scale attention: predict logits at several scales, and blend them.

    :func:`.blend_scales` blends from the largest scale to the smallest; the attention predicted at
    the largest scale is not used. As in the published code, the maps of each scale are resized to
    the image at that scale before, and the same attention blends coarse and refined logits.

    Args:
        scales: scale factors at test time, all different; 1.0 has to be among them.
        scale_loss_weight: weight of the loss on each training scale's own refined logits.
        align_corners: how to resize logits and attention, see :func:`.resize`.
    """

    @configurable
    def __init__(
        self,
        *,
        scales: Sequence[float],
        scale_loss_weight: float = 0.05,
        align_corners: bool = False,
    ):
        if 1.0 not in scales or min(scales) <= 0 or len({*scales}) < len(scales):
            raise UserError(
                f"TEST.SCALES is {list(scales)}; with MODEL.HMSA.ENABLED, expected distinct "
                "factors above 0, including 1.0, such as [0.5, 1.0, 2.0] (as published)"
            )
        self.scales = tuple(sorted(scales, reverse=True))
        self.scale_loss_weight = scale_loss_weight
        self.align_corners = align_corners

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        return {
            "scales": cfg.TEST.SCALES,
            "scale_loss_weight": cfg.MODEL.HMSA.SCALE_LOSS_WEIGHT,
            "align_corners": cfg.MODEL.ALIGN_CORNERS,
        }

    def losses(
        self,
        network: Network,
        images: Tensor,
        targets: Tensor,
        criterion: SemSegCriterion,
        divisor: int = 1,
    ) -> dict[str, Tensor]:
        """
        Return the criterion's losses for the blended logits, and "loss_sem_seg_scales".

        "loss_sem_seg_scales" is the sum of ``criterion.coarse_loss(refined logits)`` over the
        two training scales, times ``scale_loss_weight``. It is left out if the weight is 0.

        Args:
            images: normalised and padded images, [N, 3, H, W].
            targets: labels, int64 [N, H, W].
            divisor: at each scale, the resized images are padded to multiples of this number.
        """
        (*half, attention), whole = self._views(network, images, TRAINING_SCALES, divisor)
        coarse, refined = (
            blend_scales(larger, lower, attention, TRAINING_SCALES[0], self.align_corners)
            for larger, lower in zip(whole, half)
        )
        losses = criterion(coarse, refined, targets, self.align_corners)
        if self.scale_loss_weight:
            own = (
                criterion.coarse_loss(logits, targets, self.align_corners)
                for logits in (half[1], whole[1])
            )
            losses["loss_sem_seg_scales"] = self.scale_loss_weight * sum(own)
        return losses

    def logits(self, network: Network, image: Tensor, divisor: int = 1) -> Tensor:
        """
        Return the refined logits [N, K, H, W], blended over all scales.

        ``image`` [N, 3, H, W] has to be normalised, and the network in evaluation mode. At each
        scale, the resized image is padded to multiples of ``divisor``.
        """
        views = self._views(network, image, self.scales, divisor, first=1)
        blended, _ = next(views)
        for scale, (refined, attention) in zip(self.scales[1:], views):
            blended = blend_scales(blended, refined, attention, scale, self.align_corners)
        return blended

    def _views(
        self, network: Network, image: Tensor, scales: Sequence[float], divisor: int, first: int = 0
    ) -> Iterator[list[Tensor]]:
        """
        For each scale, yield the network's maps, resized to the size of the scaled image.

        The maps are float32 or better. Maps before the index ``first`` are left out.
        """
        for scale in scales:
            height, width = (max(1, int(scale * side)) for side in image.shape[2:])
            padded = pad_to_multiple(resize(image, (height, width)), divisor)
            found = []
            for x in network(padded)[first:]:
                x = x.to(torch.promote_types(x.dtype, torch.float32))
                x = resize(x, padded.shape[2:], self.align_corners)
                found.append(x[..., :height, :width])
            yield found
