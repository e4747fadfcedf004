"""
The head of the paper's semantic segmentation architecture (section "Architecture").

Shape shorthand: N images, K classes = object regions, H W padded input size, h w feature size at
``common_stride``.
"""

from collections.abc import Sequence

import torch
from detectron2.config import CfgNode, configurable
from detectron2.layers import Conv2d, ShapeSpec
from detectron2.modeling import SEM_SEG_HEADS_REGISTRY
from torch import Tensor, nn

from ocr_panoptic.layers import ContextScheme, ConvNormReLU, one_hot_labels, resize

from .context import build_context, check_region_supervision
from .losses import cross_entropy, hard_cross_entropy


@SEM_SEG_HEADS_REGISTRY.register()
class ContextSemSegHead(nn.Module):
    """
    Coarse prediction, pixel representations through a 3x3 convolution, a context scheme, and the
    final prediction. Several features of one kind are resized to the finest of them and
    concatenated, the finest first, which is HRNet's final representation.

    Args:
        input_shape: of the backbone.
        in_features: features of the pixel representations (stage 4 of a ResNet, all of HRNet).
        coarse_in_features: features of the coarse prediction (stage 3 of a ResNet).
        num_classes: K.
        context: the scheme, see :mod:`.context`.
        channels: of the pixel representations.
        norm: of the head's convolutions.
        negative_slope: of the ReLUs of the head's convolutions, see :class:`.ConvNormReLU`.
        align_corners: of all resizing, see :func:`.resize`.
        coarse_kernel: kernel of the convolution in front of the coarse classifier: 3 for ResNet in
            the published code, 3 (openseg.pytorch) or 1 (HRNet-OCR, mmsegmentation) for HRNet, 0
            for the linear classifier of the paper.
        coarse_channels: its output channels.
        coarse_dropout: of that convolution's output, by channel: 0.05 for ResNet and 0 for HRNet.
        region_supervision: whether the coarse prediction, which has a loss, is the soft object
            regions; False for the paper's ablation, in which a second branch of the same form
            predicts them without a loss, and the coarse loss is an auxiliary one.
        loss_weight, coarse_loss_weight: of the two predictions.
        ignore_value: label that does not count.
        class_weights: weight of each class in both losses; () for none.
        loss_type: "cross_entropy" or "ohem", of the final prediction.
        ohem_threshold, ohem_min_kept: see :func:`.losses.hard_cross_entropy`.
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
        channels: int = 512,
        norm: str = "SyncBN",
        negative_slope: float = 0.0,
        align_corners: bool = False,
        coarse_kernel: int = 3,
        coarse_channels: int = 512,
        coarse_dropout: float = 0.05,
        region_supervision: bool = True,
        loss_weight: float = 1.0,
        coarse_loss_weight: float = 0.4,
        ignore_value: int = 255,
        class_weights: Sequence[float] = (),
        loss_type: str = "cross_entropy",
        ohem_threshold: float = 0.9,
        ohem_min_kept: int = 100000,
    ):
        super().__init__()
        _check_features(input_shape, [*in_features, *coarse_in_features])
        if loss_type not in ("cross_entropy", "ohem"):
            raise ValueError(
                f"MODEL.SEM_SEG_HEAD.LOSS_TYPE is {loss_type}; it is cross_entropy or ohem"
            )
        if coarse_kernel and coarse_kernel % 2 == 0:
            raise ValueError(
                f"MODEL.SEM_SEG_HEAD.COARSE_KERNEL is {coarse_kernel}; it is odd, or 0 for none"
            )
        if len(class_weights) not in (0, num_classes):
            raise ValueError(
                f"MODEL.SEM_SEG_HEAD.CLASS_WEIGHTS has {len(class_weights)} weights for "
                f"{num_classes} classes; it needs one for each, or [] for none"
            )
        self.in_features = _finest_first(in_features, input_shape)
        self.coarse_in_features = _finest_first(coarse_in_features, input_shape)
        self.num_classes = num_classes
        self.align_corners = align_corners
        self.common_stride = input_shape[self.in_features[0]].stride
        self.loss_weight = loss_weight
        self.coarse_loss_weight = coarse_loss_weight
        self.ignore_value = ignore_value
        self.loss_type = loss_type
        self.ohem_threshold = ohem_threshold
        self.ohem_min_kept = ohem_min_kept
        weights = torch.tensor(class_weights, dtype=torch.float32) if class_weights else None
        self.register_buffer("class_weights", weights, persistent=False)

        kinds = {"norm": norm, "negative_slope": negative_slope}

        def coarse_branch() -> tuple[nn.Sequential, Conv2d]:
            channels = _count_channels(input_shape, coarse_in_features)
            branch = nn.Sequential()
            if coarse_kernel:
                branch.append(
                    ConvNormReLU(channels, coarse_channels, kernel_size=coarse_kernel, **kinds)
                )
                branch.append(nn.Dropout2d(coarse_dropout))
                channels = coarse_channels
            return branch, Conv2d(channels, num_classes, kernel_size=1)

        check_region_supervision(context, region_supervision)
        self.coarse, self.coarse_predictor = coarse_branch()
        self.regions = None if region_supervision else nn.Sequential(*coarse_branch())
        self.context = context
        self.bottleneck = (
            nn.Identity()
            if context.takes_features
            else ConvNormReLU(
                _count_channels(input_shape, in_features), channels, kernel_size=3, **kinds
            )
        )
        self.predictor = Conv2d(context.out_channels, num_classes, kernel_size=1)

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict:
        head = cfg.MODEL.SEM_SEG_HEAD
        _check_features(input_shape, head.IN_FEATURES + head.COARSE_IN_FEATURES)
        return {
            "input_shape": input_shape,
            "in_features": head.IN_FEATURES,
            "coarse_in_features": head.COARSE_IN_FEATURES,
            "num_classes": head.NUM_CLASSES,
            "context": build_context(cfg, _count_channels(input_shape, head.IN_FEATURES)),
            "channels": cfg.MODEL.OCR.CHANNELS,
            "norm": cfg.MODEL.OCR.NORM,
            "negative_slope": cfg.MODEL.OCR.NEGATIVE_SLOPE,
            "align_corners": cfg.MODEL.ALIGN_CORNERS,
            "coarse_kernel": head.COARSE_KERNEL,
            "coarse_channels": head.COARSE_CHANNELS,
            "coarse_dropout": head.COARSE_DROPOUT,
            "region_supervision": cfg.MODEL.OCR.REGION_SUPERVISION,
            "loss_weight": head.LOSS_WEIGHT,
            "coarse_loss_weight": cfg.MODEL.OCR.COARSE_LOSS_WEIGHT,
            "ignore_value": head.IGNORE_VALUE,
            "class_weights": head.CLASS_WEIGHTS,
            "loss_type": head.LOSS_TYPE,
            "ohem_threshold": head.OHEM_THRESHOLD,
            "ohem_min_kept": head.OHEM_MIN_KEPT,
        }

    def forward(self, features: dict[str, Tensor], targets: Tensor | None = None):
        """
        Args:
            features: of the backbone, [N, C, H / stride, W / stride]
            targets: int64 labels [N, H, W], needed in training and for GT-OCR

        Returns:
            In training, (None, dict of losses).
            In inference, (final logits [N, K, H, W], {}), as any head of Detectron2. For large
            images :meth:`layers` and :mod:`.inference` make labels in less memory.
        """
        coarse, refined = self.layers(features, targets)
        if self.training:
            return None, self.losses((coarse, refined), targets)
        size = [self.common_stride * n for n in refined.shape[2:]]
        return resize(refined, size, self.align_corners), {}

    def layers(
        self, features: dict[str, Tensor], targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            features, targets: of :meth:`forward`

        Returns:
            (coarse logits, final logits), [N, K, h, w]
        """
        stage = self._concatenate(features, self.coarse_in_features)
        coarse = self.coarse_predictor(self.coarse(stage))
        regions = coarse if self.regions is None else self.regions(stage)
        x = self.bottleneck(self._concatenate(features, self.in_features))
        if self.context.needs_truth:
            if targets is None:
                raise ValueError(
                    "MODEL.CONTEXT.NAME GT-OCR needs the ground truth of every image, but the "
                    "input has no sem_seg."
                )
            size = x.shape[2:]
            regions = one_hot_labels(targets, self.num_classes, self.ignore_value, size).to(x)
        else:
            regions = resize(regions, x.shape[2:], self.align_corners)
        return coarse, self.predictor(self.context(x, regions))

    def _concatenate(self, features: dict[str, Tensor], names: list[str]) -> Tensor:
        size = features[names[0]].shape[2:]
        resized = [resize(features[name], size, self.align_corners) for name in names]
        return resized[0] if len(resized) == 1 else torch.cat(resized, dim=1)

    def losses(self, predictions: tuple[Tensor, Tensor], targets: Tensor) -> dict[str, Tensor]:
        """
        Args:
            predictions: (coarse logits, final logits) as :meth:`layers` returns them
            targets: int64 labels [N, H, W]

        Returns:
            ``loss_sem_seg`` (final) and ``loss_sem_seg_coarse``, each with its weight applied.
            Hard example mining concerns the final one alone, as in the published code.
        """
        coarse, refined = (
            resize(logits.float(), targets.shape[1:], self.align_corners) for logits in predictions
        )
        if self.loss_type == "ohem":
            loss = hard_cross_entropy(
                refined,
                targets,
                self.ignore_value,
                self.ohem_threshold,
                self.ohem_min_kept,
                self.class_weights,
            )
        else:
            loss = cross_entropy(refined, targets, self.ignore_value, self.class_weights)
        coarse_loss = cross_entropy(coarse, targets, self.ignore_value, self.class_weights)
        return {
            "loss_sem_seg": self.loss_weight * loss,
            "loss_sem_seg_coarse": self.coarse_loss_weight * coarse_loss,
        }


def _check_features(input_shape: dict[str, ShapeSpec], names: list[str]) -> None:
    for name in names:
        if name not in input_shape:
            raise ValueError(
                f"MODEL.SEM_SEG_HEAD names the feature {name}; the backbone has "
                f"{', '.join(input_shape)}"
            )


def _count_channels(input_shape: dict[str, ShapeSpec], names: list[str]) -> int:
    return sum(input_shape[name].channels for name in names)


def _finest_first(names: list[str], input_shape: dict[str, ShapeSpec]) -> list[str]:
    return sorted(names, key=lambda name: input_shape[name].stride)
