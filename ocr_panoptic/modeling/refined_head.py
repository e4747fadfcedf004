"""
The base class of the semantic heads, and what they do with the backbone's features.

A head has a coarse prediction, a context scheme, and a refined prediction.

Shape shorthand: N images; K classes (and object regions); H, W padded input size; h', w' size of
the features for the coarse prediction; h, w size of the pixel representations.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.layers import Conv2d, ShapeSpec
from torch import Tensor, nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers.context_scheme import ContextScheme, run_part
from ocr_panoptic.layers.conv import ConvNormReLU
from ocr_panoptic.layers.resize import one_hot_labels, resize

from .context import build_context
from .losses import SemSegCriterion


class RefinedHead(nn.Module):
    """
    A semantic head that predicts coarse logits, adds context, and predicts refined logits.

    The coarse logits serve as soft object regions for a context scheme, whose output is classified
    again. A subclass defines :meth:`representations`, and makes the coarse classifier available as
    ``coarse_predictor``.

    Args:
        coarse_predictor: coarse classifier.
        in_channels: number of channels of the features for the pixel representations.
        coarse: modules between the features and the coarse classifier; None for no modules.
        regions: module that predicts the soft object regions from the features of the coarse
            prediction, without a loss (the paper's ablation). If None, the coarse prediction, which
            has a loss, serves as the regions.
        residual: whether the coarse logits are added to the output of the refined classifier, whose
            weights then start at 0.
        coarse_start: initial weights of the coarse classifier, for C input channels. "pytorch":
            U(-b, b) with b = 1 / sqrt(C), as in the published code. "he": N(0, 2 / C), whose
            standard deviation is sqrt(6) times as large. "detectron2": N(0, 2 / K) for K
            classes, as in ``SemSegFPNHead``.
        recompute: whether to save memory in training by computing the head again in the backward
            pass, see :func:`.run_part`.

    Attributes:
        bottleneck: 3x3 convolution to pixel representations; the identity for a context scheme that
            reads the backbone's features directly.
    """

    coarse_predictor: Conv2d

    def __init__(
        self,
        coarse_predictor: Conv2d,
        in_channels: int,
        *,
        common_stride: int,
        context: ContextScheme,
        criterion: SemSegCriterion,
        coarse: nn.Module | None = None,
        regions: nn.Module | None = None,
        ocr_channels: int = 512,
        ocr_norm: str = "SyncBN",
        negative_slope: float = 0.0,
        residual: bool = False,
        coarse_start: str = "pytorch",
        recompute: bool = False,
        align_corners: bool = False,
    ):
        super().__init__()
        if regions is not None and (context.needs_truth or not context.uses_regions):
            raise UserError(
                "MODEL.OCR.REGION_SUPERVISION False needs a context scheme with predicted regions, "
                f"but {type(context).__name__} does not use any. Set it to True, or set "
                "MODEL.CONTEXT.NAME to OCR or one of its variants."
            )
        if coarse_start != "pytorch":
            nn.init.kaiming_normal_(
                coarse_predictor.weight,
                mode="fan_in" if coarse_start == "he" else "fan_out",
                nonlinearity="relu",
            )
            nn.init.zeros_(coarse_predictor.bias)
        self.coarse = coarse or nn.Identity()
        self.regions = regions
        self.context = context
        self.bottleneck = nn.Identity()
        if not context.takes_features:
            kinds: dict[str, Any] = {"norm": ocr_norm, "negative_slope": negative_slope}
            self.bottleneck = ConvNormReLU(in_channels, ocr_channels, kernel_size=3, **kinds)
        classes = coarse_predictor.out_channels
        self.refined_predictor = Conv2d(context.out_channels, classes, kernel_size=1)
        if residual:
            nn.init.zeros_(self.refined_predictor.weight)
            nn.init.zeros_(self.refined_predictor.bias)
        self.criterion = criterion
        self.common_stride = common_stride
        self.residual = residual
        self.align_corners = align_corners
        self.recompute = recompute

    def representations(self, features: dict[str, Tensor]) -> tuple[Tensor | None, Tensor]:
        """
        Return features for the coarse prediction and for the pixel representations.

        Their shapes are [N, C, h', w'] and [N, C, h, w]. The first item is None if the coarse
        prediction is made from the pixel representations. ``features`` holds the backbone's
        features by name.
        """
        raise NotImplementedError(f"{type(self).__name__} must define representations()")

    def forward(self, features: dict[str, Tensor], targets: Tensor | None = None):
        """
        Return losses in training, else final logits, like Detectron2's semantic heads.

        Args:
            features: the backbone's features by name, [N, C, H / stride, W / stride]
            targets: int64 labels [N, H, W]; needed in training, and at inference by context schemes
                that use the ground truth

        Returns:
            (None, dict of losses) in training, else (final logits [N, K, H, W], {})
        """
        coarse, refined = self.layers(features, targets)
        if not self.training:
            size = [self.common_stride * n for n in refined.shape[2:]]
            return resize(refined, size, self.align_corners), {}
        if targets is None:
            raise UserError(
                "Training needs the ground truth of every image, but the input has no sem_seg."
            )
        return None, self.losses((coarse, refined), targets)

    def layers(
        self, features: dict[str, Tensor], targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return coarse logits [N, K, h', w'] and final logits [N, K, h, w]."""
        truth = targets if self.context.needs_truth else None
        coarse, x, regions = run_part(self, self.prepare, features, truth)
        refined = run_part(self, self._refine, x, regions)
        return coarse, self.with_coarse(refined, coarse)

    def with_coarse(self, refined: Tensor, coarse: Tensor) -> Tensor:
        """
        Return the final logits [N, K, h, w] from ``refined``, the output of the refined classifier.

        A residual head adds the coarse logits [N, K, h', w'], resized, to ``refined``.
        """
        if not self.residual:
            return refined
        return refined + resize(coarse, refined.shape[2:], self.align_corners)

    def prepare(
        self, features: dict[str, Tensor], truth: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """
        Return the coarse logits, and the inputs of the context scheme.

        ``truth`` holds int64 labels [N, H, W], for a context scheme that uses the ground truth.

        Returns:
            (coarse logits [N, K, h', w'], pixel representations [N, C, h, w], soft object regions
            [N, K, h, w])
        """
        stage, pixels = self.representations(features)
        x = self.bottleneck(pixels)
        stage = x if stage is None else stage
        coarse = self.coarse_predictor(self.coarse(stage))
        size = x.shape[2:]
        if not self.context.needs_truth:
            regions = coarse if self.regions is None else self.regions(stage)
            regions = resize(regions, size, self.align_corners)
        elif truth is None:
            raise UserError(
                f"The context scheme {type(self.context).__name__} (MODEL.CONTEXT.NAME) needs the "
                "ground truth of every image, but the input has no sem_seg."
            )
        else:
            classes, ignore_value = coarse.shape[1], self.criterion.ignore_value
            regions = one_hot_labels(truth, classes, ignore_value, size).to(x)
            if self.context.adds_logits:
                logits = resize(coarse, size, self.align_corners)
                regions = torch.cat([regions, logits.to(x)], dim=1)
        return coarse, x, regions

    def _refine(self, x: Tensor, regions: Tensor) -> Tensor:
        if self.training:
            return self.refined_predictor(self.context(x, regions))
        logits = [self.refined_predictor(z) for z in self.context.in_bands(x, regions)]
        return torch.cat(logits, dim=2) if len(logits) > 1 else logits[0]

    def losses(self, predictions: tuple[Tensor, Tensor], targets: Tensor) -> dict[str, Tensor]:
        """Return the losses of the (coarse, final) logits for int64 labels [N, H, W]."""
        return self.criterion(*predictions, targets, self.align_corners)


def refinement_arguments(cfg: CfgNode, feature_channels: int) -> dict[str, Any]:
    """Return the constructor arguments that all ``RefinedHead`` subclasses take from a config."""
    return {
        "context": build_context(cfg, feature_channels),
        "criterion": SemSegCriterion(cfg),
        "ocr_channels": cfg.MODEL.OCR.CHANNELS,
        "ocr_norm": cfg.MODEL.OCR.NORM,
        "negative_slope": cfg.MODEL.OCR.NEGATIVE_SLOPE,
        "residual": cfg.MODEL.OCR.RESIDUAL,
        "coarse_start": cfg.MODEL.OCR.COARSE_START,
        "region_supervision": cfg.MODEL.OCR.REGION_SUPERVISION,
        "recompute": cfg.MODEL.OCR.RECOMPUTE,
    }


def count_channels(input_shape: dict[str, ShapeSpec], names: list[str]) -> int:
    return sum(input_shape[name].channels for name in names)


def finest_first(names: list[str], input_shape: dict[str, ShapeSpec]) -> list[str]:
    return sorted(names, key=lambda name: input_shape[name].stride)


def join_features(features: dict[str, Tensor], names: list[str], align_corners: bool) -> Tensor:
    """Resize the named features [N, C, h, w] to the size of the first, and join their channels."""
    size = features[names[0]].shape[2:]
    resized = [resize(features[name], size, align_corners) for name in names]
    return resized[0] if len(resized) == 1 else torch.cat(resized, dim=1)


def check_features(key: str, names: Sequence[str], available: Iterable[str]) -> None:
    """Raise UserError if a config key lists no feature, or a feature that the backbone lacks."""
    if not names or not {*names} <= {*available}:
        raise UserError(
            f"{key} is {list(names)}; expected features of the backbone: {', '.join(available)}"
        )
