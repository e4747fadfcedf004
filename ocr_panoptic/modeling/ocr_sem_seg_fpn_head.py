"""The semantic head of Panoptic-FPN + OCR."""

from typing import Any

import torch.nn.functional as F
from detectron2.config import CfgNode, configurable
from detectron2.layers import Conv2d, ShapeSpec
from detectron2.modeling import SEM_SEG_HEADS_REGISTRY
from detectron2.modeling.meta_arch.semantic_seg import SemSegFPNHead
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers.context_scheme import ContextScheme
from ocr_panoptic.layers.resize import resize

from .refined_head import RefinedHead, check_features, refinement_arguments


@SEM_SEG_HEADS_REGISTRY.register()
class OCRSemSegFPNHead(RefinedHead):
    """
    Panoptic-FPN's semantic head, followed by an OCR head that refines its prediction.

    Panoptic-FPN's prediction is the coarse prediction and serves as soft object regions (section
    "Experiments: Panoptic Segmentation" of :paper:`OCR`). Branches and classifier are named as in
    Detectron2's ``SemSegFPNHead``, so a Panoptic-FPN checkpoint of the model zoo can be loaded. The
    OCR head sees the sum of the FPN branches, see docs/architecture.md. Another context scheme can
    replace OCR, but not a scheme that needs the ground truth: ``PanopticFPN`` does not pass labels
    to its head at inference.

    Args:
        plain: Panoptic-FPN's head, whose branches and classifier are reused.
        region_supervision: whether the coarse prediction, which has a loss, serves as soft object
            regions. If False, a second classifier predicts the regions without a loss.
        downsample: factor by which average pooling shrinks the OCR head's input. The refined
            logits are then resized to the size of the coarse logits.
    """

    @configurable
    def __init__(
        self,
        plain: SemSegFPNHead,
        *,
        context: ContextScheme,
        region_supervision: bool = True,
        downsample: int = 1,
        **refinement: Any,
    ):
        if context.needs_truth:
            raise UserError(
                f"The context scheme {type(context).__name__} (MODEL.CONTEXT.NAME) needs the "
                "ground truth, which PanopticFPN does not have at inference. Choose another "
                "scheme, or set MODEL.META_ARCHITECTURE OCRSemanticSegmentor"
            )
        predictor = plain.predictor
        # Detectron2 starts it with std sqrt(2 / K); this head does so only for "detectron2".
        predictor.reset_parameters()
        channels, classes = predictor.in_channels, predictor.out_channels
        super().__init__(
            predictor,
            channels,
            common_stride=plain.common_stride,
            context=context,
            regions=None if region_supervision else Conv2d(channels, classes, kernel_size=1),
            **refinement,
        )
        self.in_features = plain.in_features
        self.downsample = downsample
        for name, branch in plain.named_children():  # "p2", ..., "predictor", as in checkpoints
            self.add_module(name, branch)

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict:
        # Detectron2's head ignores unknown names.
        names = cfg.MODEL.SEM_SEG_HEAD.IN_FEATURES
        check_features("MODEL.SEM_SEG_HEAD.IN_FEATURES", names, input_shape)
        refinement = refinement_arguments(cfg, cfg.MODEL.SEM_SEG_HEAD.CONVS_DIM)
        plain = SemSegFPNHead(cfg, input_shape)
        return {**refinement, "plain": plain, "downsample": cfg.MODEL.OCR.DOWNSAMPLE}

    @property
    def coarse_predictor(self) -> Conv2d:
        """The coarse classifier, named ``predictor`` in the state dict as in Detectron2."""
        return self.predictor

    @property
    def ignore_value(self) -> int:
        """The label of ignored pixels; ``PanopticFPN`` also pads label maps with it."""
        return self.criterion.ignore_value

    def representations(self, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """
        Return the sum of the FPN branches, and this sum shrunk by the factor ``downsample``.

        The coarse classifier reads the first map, the OCR head the second.
        """
        x = sum(getattr(self, name)(features[name]) for name in self.in_features)
        return x, F.avg_pool2d(x, self.downsample) if self.downsample > 1 else x

    def with_coarse(self, refined: Tensor, coarse: Tensor) -> Tensor:
        """Return ``refined`` resized to the size of ``coarse``; a residual head adds ``coarse``."""
        return super().with_coarse(resize(refined, coarse.shape[2:], self.align_corners), coarse)
