"""The semantic head of Panoptic-FPN + OCR.

Shape shorthand: N images, K classes = object regions, H W padded input size, h w feature size at
``common_stride``.
"""

import torch.nn.functional as F
from detectron2.config import CfgNode, configurable
from detectron2.layers import Conv2d, ShapeSpec
from detectron2.modeling import SEM_SEG_HEADS_REGISTRY
from detectron2.modeling.meta_arch.semantic_seg import SemSegFPNHead
from torch import Tensor, nn

from ocr_panoptic.layers import ContextScheme, ConvNormReLU

from .context import build_context, check_region_supervision
from .losses import cross_entropy


@SEM_SEG_HEADS_REGISTRY.register()
class OCRSemSegFPNHead(SemSegFPNHead):
    """
    Panoptic-FPN's semantic head, whose prediction serves as soft object regions, followed by an
    OCR head that predicts the refined segmentation (section "Experiments: Panoptic Segmentation"
    of :paper:`OCR`).

    The coarse branch is Detectron2's ``SemSegFPNHead`` with its parameter names, so a Panoptic-FPN
    checkpoint of the model zoo loads into it; its classifier starts smaller than Detectron2's. The
    paper and the published code leave open what the OCR head sees; here it is the sum of the FPN
    branches (the input of the coarse predictor), through the 3x3 convolution that the paper puts
    in front of OCR. Any other context scheme can stand in OCR's place, but for GT-OCR:
    ``PanopticFPN`` hands no truth to its head at inference.

    Args:
        input_shape: channels and strides of the FPN features.
        context: the scheme, see :mod:`.context`; OCR in the paper.
        ocr_channels: channels of the pixel representations.
        ocr_norm: norm of the 3x3 convolution. The coarse branch has its own, ``norm``.
        region_supervision: whether the coarse prediction, which has a loss, is the soft object
            regions; False: a second classifier of the same features predicts them without a loss.
        coarse_loss_weight: weight of the coarse prediction's loss; ``loss_weight`` is the
            refined one's. The paper uses 0.25 for both.
        kwargs: arguments of ``SemSegFPNHead``.

    Raises:
        ValueError: for GT-OCR.
    """

    @configurable
    def __init__(
        self,
        input_shape: dict[str, ShapeSpec],
        *,
        context: ContextScheme,
        ocr_channels: int = 512,
        ocr_norm: str = "SyncBN",
        region_supervision: bool = True,
        coarse_loss_weight: float = 0.25,
        **kwargs,
    ):
        super().__init__(input_shape, **kwargs)
        if context.needs_truth:
            raise ValueError(
                "MODEL.CONTEXT.NAME is GT-OCR, which PanopticFPN cannot evaluate. Use "
                "OCRSemanticSegmentor with ContextSemSegHead for it, or another scheme here."
            )
        check_region_supervision(context, region_supervision)
        self.coarse_loss_weight = coarse_loss_weight
        # Detectron2 starts it with std sqrt(2 / K): logits so large that the spatial softmax of
        # each region begins as a few random pixels (docs/camvid_study.md).
        self.predictor.reset_parameters()
        self.bottleneck = (
            nn.Identity()
            if context.takes_features
            else ConvNormReLU(kwargs["conv_dims"], ocr_channels, kernel_size=3, norm=ocr_norm)
        )
        self.ocr = context
        self.ocr_predictor = Conv2d(context.out_channels, kwargs["num_classes"], kernel_size=1)
        self.regions = None
        if not region_supervision:
            self.regions = Conv2d(kwargs["conv_dims"], kwargs["num_classes"], kernel_size=1)

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict:
        return {
            **super().from_config(cfg, input_shape),
            "context": build_context(cfg, cfg.MODEL.SEM_SEG_HEAD.CONVS_DIM),
            "ocr_channels": cfg.MODEL.OCR.CHANNELS,
            "ocr_norm": cfg.MODEL.OCR.NORM,
            "region_supervision": cfg.MODEL.OCR.REGION_SUPERVISION,
            "coarse_loss_weight": cfg.MODEL.OCR.COARSE_LOSS_WEIGHT,
        }

    def forward(self, features: dict[str, Tensor], targets: Tensor | None = None):
        """
        Args:
            features: FPN features by name, [N, C, H / stride, W / stride]
            targets: int64 labels [N, H, W], needed in training

        Returns:
            In training, (None, dict of losses).
            In inference, (refined logits [N, K, H, W], {}). The coarse logits stay at feature
            size and are not returned; :meth:`layers` gives both.
        """
        coarse, refined = self.layers(features)
        if self.training:
            return None, self.losses((coarse, refined), targets)
        return self._upsample(refined), {}

    def layers(self, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """
        Args:
            features: FPN features by name

        Returns:
            (coarse logits, refined logits), each [N, K, h, w] at ``common_stride``
        """
        x = sum(head(features[f]) for f, head in zip(self.in_features, self.scale_heads))
        coarse = self.predictor(x)
        regions = coarse if self.regions is None else self.regions(x)
        refined = self.ocr_predictor(self.ocr(self.bottleneck(x), regions))
        return coarse, refined

    def losses(self, predictions: tuple[Tensor, Tensor], targets: Tensor) -> dict[str, Tensor]:
        """
        Args:
            predictions: (coarse logits, refined logits) as :meth:`layers` returns them
            targets: int64 labels [N, H, W]

        Returns:
            ``loss_sem_seg`` (refined) and ``loss_sem_seg_coarse``, each with its weight applied
        """
        coarse, refined = predictions
        weights = {"loss_sem_seg": self.loss_weight, "loss_sem_seg_coarse": self.coarse_loss_weight}
        return {
            name: weight * cross_entropy(self._upsample(logits.float()), targets, self.ignore_value)
            for (name, weight), logits in zip(weights.items(), (refined, coarse))
        }

    def _upsample(self, logits: Tensor) -> Tensor:
        return F.interpolate(
            logits, scale_factor=self.common_stride, mode="bilinear", align_corners=False
        )
