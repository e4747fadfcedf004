"""The semantic head of Panoptic-FPN + OCR."""

from detectron2.config import CfgNode, configurable
from detectron2.layers import Conv2d, ShapeSpec
from detectron2.modeling import SEM_SEG_HEADS_REGISTRY
from detectron2.modeling.meta_arch.semantic_seg import SemSegFPNHead
from torch import Tensor, nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers import ContextScheme

from .losses import SemSegCriterion
from .refined_head import RefinedHead, refinement_arguments


@SEM_SEG_HEADS_REGISTRY.register()
class OCRSemSegFPNHead(RefinedHead, SemSegFPNHead):
    """
    Panoptic-FPN's semantic head, whose prediction serves as soft object regions, followed by an
    OCR head that predicts the refined segmentation (section "Experiments: Panoptic Segmentation"
    of :paper:`OCR`).

    The coarse branch is Detectron2's ``SemSegFPNHead`` with its parameter names, so a Panoptic-FPN
    checkpoint of the model zoo loads into it; its classifier starts smaller than Detectron2's. The
    OCR head sees the sum of the FPN branches, see docs/architecture.md. Any other context scheme
    can stand in OCR's place, but for one that sees the truth: ``PanopticFPN`` hands none to its
    head at inference.

    Args:
        input_shape: channels and strides of the FPN features.
        context, criterion, ocr_channels, ocr_norm, negative_slope, residual, coarse_start,
            recompute: see :meth:`.RefinedHead.add_refinement`.
        region_supervision: whether the coarse prediction, which has a loss, is the soft object
            regions; False: a second classifier of the same features predicts them without a loss.
        kwargs: arguments of ``SemSegFPNHead``.

    Raises:
        ValueError: for a scheme that sees the truth.
    """

    @configurable
    def __init__(
        self,
        input_shape: dict[str, ShapeSpec],
        *,
        context: ContextScheme,
        criterion: SemSegCriterion,
        ocr_channels: int = 512,
        ocr_norm: str = "SyncBN",
        negative_slope: float = 0.0,
        region_supervision: bool = True,
        residual: bool = False,
        coarse_start: str = "pytorch",
        recompute: bool = False,
        **kwargs,
    ):
        super().__init__(input_shape, **kwargs)
        if context.needs_truth:
            raise UserError(
                f"The scheme of MODEL.CONTEXT.NAME ({type(context).__name__}) sees the ground "
                "truth, and PanopticFPN has none at inference. Use OCRSemanticSegmentor with "
                "ContextSemSegHead for it, or another scheme here."
            )
        # Detectron2 starts it with std sqrt(2 / K), which only coarse_start "detectron2" has here.
        self.predictor.reset_parameters()
        self.coarse = nn.Sequential()
        channels, classes = self.predictor.in_channels, self.predictor.out_channels
        self.add_refinement(
            channels,
            None if region_supervision else Conv2d(channels, classes, kernel_size=1),
            context=context,
            criterion=criterion,
            ocr_channels=ocr_channels,
            ocr_norm=ocr_norm,
            negative_slope=negative_slope,
            residual=residual,
            coarse_start=coarse_start,
            recompute=recompute,
        )

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict:
        return {
            **super().from_config(cfg, input_shape),
            **refinement_arguments(cfg, cfg.MODEL.SEM_SEG_HEAD.CONVS_DIM),
        }

    @property
    def coarse_predictor(self) -> Conv2d:
        """The coarse classifier, ``predictor`` in the state dict as in Detectron2's."""
        return self.predictor

    def representations(self, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The sum of the FPN branches for both, see :meth:`.RefinedHead.representations`."""
        x = sum(head(features[f]) for f, head in zip(self.in_features, self.scale_heads))
        return x, x
