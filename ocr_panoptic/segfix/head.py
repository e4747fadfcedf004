"""The head of SegFix, which finds boundary pixels, and each pixel's direction into its region."""

from typing import Any

from detectron2.config import CfgNode, configurable
from detectron2.layers import Conv2d, ShapeSpec
from detectron2.modeling import SEM_SEG_HEADS_REGISTRY
from torch import Tensor, nn

from ocr_panoptic.formats.offsets import DIRECTIONS, IGNORED, split_offset_labels
from ocr_panoptic.layers.class_losses import rarity_weighted_cross_entropy
from ocr_panoptic.layers.conv import ConvNormReLU
from ocr_panoptic.layers.resize import resize
from ocr_panoptic.modeling.refined_head import (
    check_features,
    count_channels,
    finest_first,
    join_features,
)


@SEM_SEG_HEADS_REGISTRY.register()
class SegFixHead(nn.Module):
    """
    SegFix's head, which has a boundary branch and a direction branch, as in the published code.

    Each branch is a 1x1 conv-norm-ReLU and a 1x1 classifier without bias. The features are resized
    to the size of the finest feature and concatenated.

    Args:
        in_features: names of the features that both branches read.
        channels: number of channels between the two convolutions of a branch.
        norm, negative_slope: norm layer, and slope of the ReLU for negative values.
        loss_weight: weight of each of the two losses.
    """

    @configurable
    def __init__(
        self,
        input_shape: dict[str, ShapeSpec],
        *,
        in_features: list[str],
        channels: int = 256,
        norm: str = "SyncBN",
        negative_slope: float = 0.0,
        loss_weight: float = 1.0,
        align_corners: bool = False,
    ):
        super().__init__()
        check_features("MODEL.SEM_SEG_HEAD.IN_FEATURES", in_features, input_shape)
        self.in_features = finest_first(in_features, input_shape)
        self.common_stride = input_shape[self.in_features[0]].stride
        self.loss_weight = loss_weight
        self.align_corners = align_corners

        kinds: dict[str, Any] = {"norm": norm, "negative_slope": negative_slope}
        in_channels = count_channels(input_shape, in_features)

        def branch(classes: int) -> nn.Sequential:
            return nn.Sequential(
                ConvNormReLU(in_channels, channels, **kinds),
                Conv2d(channels, classes, kernel_size=1, bias=False),
            )

        self.boundary = branch(2)
        self.direction = branch(len(DIRECTIONS))

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict:
        return {
            "input_shape": input_shape,
            "in_features": cfg.MODEL.SEM_SEG_HEAD.IN_FEATURES,
            "channels": cfg.MODEL.SEGFIX.CHANNELS,
            "norm": cfg.MODEL.SEGFIX.NORM,
            "negative_slope": cfg.MODEL.OCR.NEGATIVE_SLOPE,
            "loss_weight": cfg.MODEL.SEM_SEG_HEAD.LOSS_WEIGHT,
            "align_corners": cfg.MODEL.ALIGN_CORNERS,
        }

    def forward(
        self, features: dict[str, Tensor], targets: Tensor | None = None
    ) -> tuple[tuple[Tensor, Tensor] | None, dict[str, Tensor]]:
        """
        Return (None, losses) in training, else ((boundary logits, direction logits), {}).

        ``targets`` holds offset labels, int64 [N, H, W].
        """
        logits = self.layers(features)
        if not self.training:
            return logits, {}
        assert targets is not None
        return None, self.losses(*logits, targets)

    def layers(self, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """
        Return boundary logits [N, 2, h, w] and direction logits [N, 8, h, w].

        Boundary channel 0 stands for pixels far from a boundary, channel 1 for pixels near a
        boundary.
        """
        x = join_features(features, self.in_features, self.align_corners)
        return self.boundary(x), self.direction(x)

    def losses(self, boundary: Tensor, direction: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """
        Return ``loss_boundary`` and ``loss_direction``, multiplied by ``loss_weight``.

        Both use :func:`.rarity_weighted_cross_entropy`. The direction loss counts only pixels that
        are near a boundary according to the boundary logits. ``boundary`` and ``direction`` are the
        logits of :meth:`layers`; ``targets`` holds offset labels, int64 [N, H, W].
        """
        size = targets.shape[1:]
        boundary = resize(boundary, size, self.align_corners)
        direction = resize(direction, size, self.align_corners)
        near_boundary, true_direction = split_offset_labels(targets)
        is_refined = boundary[:, 1] > boundary[:, 0]
        true_direction = true_direction.where(is_refined, IGNORED)
        return {
            f"loss_{name}": self.loss_weight * rarity_weighted_cross_entropy(logits, true, IGNORED)
            for name, logits, true in (
                ("boundary", boundary, near_boundary),
                ("direction", direction, true_direction),
            )
        }
