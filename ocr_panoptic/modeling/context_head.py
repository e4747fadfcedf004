"""The semantic segmentation head of the OCR paper (section "Architecture")."""

from typing import Any

from detectron2.config import CfgNode, configurable
from detectron2.layers import Conv2d, ShapeSpec
from detectron2.modeling import SEM_SEG_HEADS_REGISTRY
from torch import Tensor, nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers.context_scheme import ContextScheme, run_part
from ocr_panoptic.layers.conv import ConvNormReLU
from ocr_panoptic.layers.scale_attention import ScaleAttention

from .refined_head import (
    RefinedHead,
    check_features,
    count_channels,
    finest_first,
    join_features,
    refinement_arguments,
)


@SEM_SEG_HEADS_REGISTRY.register()
class ContextSemSegHead(RefinedHead):
    """
    The head of :paper:`OCR`: a coarse prediction, a context scheme and a refined prediction.

    The features of each list are resized to the size of the list's finest feature and concatenated,
    the finest first.

    Args:
        input_shape: shapes of the backbone's features.
        in_features: names of the features for the pixel representations (stage 4 of a ResNet, all
            stages of HRNet).
        coarse_in_features: names of the features for the coarse prediction (stage 3 of a ResNet).
            If the list is empty, the coarse prediction is made from the pixel representations.
        ocr_channels: number of channels of the pixel representations.
        ocr_norm, negative_slope: norm layer, and slope of the ReLU for negative values, in every
            :class:`.ConvNormReLU` of the head.
        coarse_kernel: kernel size of the convolution before the coarse classifier; 0 for no
            convolution, as in the paper. Published code has 3 for ResNet, and 3 (openseg.pytorch)
            or 1 (HRNet-OCR, mmsegmentation) for HRNet.
        coarse_dropout: probability of channel dropout before the coarse classifier; published code
            has 0.05 for ResNet and 0 for HRNet.
        region_supervision: whether the coarse prediction, which has a loss, serves as soft object
            regions. If False (the paper's ablation), a second branch predicts the regions without
            a loss, and the coarse loss is only an auxiliary loss.
        attention_channels: number of hidden channels in the scale attention, which predicts the
            weight of the head's logits at each pixel (see :meth:`maps`); 0 for no scale attention.
    """

    @configurable
    def __init__(
        self,
        input_shape: dict[str, ShapeSpec],
        *,
        in_features: list[str],
        coarse_in_features: list[str],
        num_classes: int,
        context: ContextScheme,
        ocr_channels: int = 512,
        ocr_norm: str = "SyncBN",
        negative_slope: float = 0.0,
        coarse_kernel: int = 3,
        coarse_channels: int = 512,
        coarse_dropout: float = 0.05,
        region_supervision: bool = True,
        attention_channels: int = 0,
        **refinement: Any,
    ):
        if coarse_kernel and coarse_kernel % 2 == 0:
            raise UserError(
                f"MODEL.SEM_SEG_HEAD.COARSE_KERNEL is {coarse_kernel}; expected 0 (no "
                "convolution) or an odd number"
            )
        in_features = finest_first(in_features, input_shape)
        in_channels = count_channels(input_shape, in_features)
        kinds: dict[str, Any] = {"norm": ocr_norm, "negative_slope": negative_slope}

        def coarse_branch() -> tuple[nn.Sequential, Conv2d]:
            pixel_channels = in_channels if context.takes_features else ocr_channels
            channels = count_channels(input_shape, coarse_in_features) or pixel_channels
            branch = nn.Sequential()
            if coarse_kernel:
                conv = ConvNormReLU(channels, coarse_channels, kernel_size=coarse_kernel, **kinds)
                branch.extend([conv, nn.Dropout2d(coarse_dropout)])
                channels = coarse_channels
            return branch, Conv2d(channels, num_classes, kernel_size=1)

        coarse, coarse_predictor = coarse_branch()
        super().__init__(
            coarse_predictor,
            in_channels,
            common_stride=input_shape[in_features[0]].stride,
            context=context,
            coarse=coarse,
            regions=None if region_supervision else nn.Sequential(*coarse_branch()),
            ocr_channels=ocr_channels,
            ocr_norm=ocr_norm,
            negative_slope=negative_slope,
            **refinement,
        )
        self.coarse_predictor = coarse_predictor
        self.in_features = in_features
        self.coarse_in_features = finest_first(coarse_in_features, input_shape)
        if attention_channels:
            self.scale_attention = ScaleAttention(context.out_channels, attention_channels, **kinds)

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict:
        head = cfg.MODEL.SEM_SEG_HEAD
        check_features("MODEL.SEM_SEG_HEAD.IN_FEATURES", head.IN_FEATURES, input_shape)
        if head.COARSE_IN_FEATURES:
            key = "MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES"
            check_features(key, head.COARSE_IN_FEATURES, input_shape)
        return {
            "input_shape": input_shape,
            "in_features": head.IN_FEATURES,
            "coarse_in_features": head.COARSE_IN_FEATURES,
            "num_classes": head.NUM_CLASSES,
            "align_corners": cfg.MODEL.ALIGN_CORNERS,
            "coarse_kernel": head.COARSE_KERNEL,
            "coarse_channels": head.COARSE_CHANNELS,
            "coarse_dropout": head.COARSE_DROPOUT,
            "attention_channels": cfg.MODEL.OCR.KEY_CHANNELS if cfg.MODEL.HMSA.ENABLED else 0,
            **refinement_arguments(cfg, count_channels(input_shape, head.IN_FEATURES)),
        }

    def maps(self, features: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """
        Return coarse logits [N, K, h', w'], final logits [N, K, h, w], and the scale attention.

        The attention is [N, 1, h, w] in (0, 1); only a head with ``attention_channels`` has it.
        """
        coarse, x, regions = run_part(self, self.prepare, features)
        refined, attention = run_part(self, self._refine_and_attend, x, regions)
        return coarse, self.with_coarse(refined, coarse), attention

    def _refine_and_attend(self, x: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
        z = self.context(x, regions)  # not in bands: the attention's 3x3 kernels cross band borders
        return self.refined_predictor(z), self.scale_attention(z)

    def representations(self, features: dict[str, Tensor]) -> tuple[Tensor | None, Tensor]:
        """
        Return concatenated features for the coarse prediction and for the pixel representations.

        If the coarse prediction is made from the pixel representations, the first item is None.
        """
        pixels = join_features(features, self.in_features, self.align_corners)
        if not self.coarse_in_features:
            return None, pixels
        if self.in_features == self.coarse_in_features:
            return pixels, pixels
        return join_features(features, self.coarse_in_features, self.align_corners), pixels
