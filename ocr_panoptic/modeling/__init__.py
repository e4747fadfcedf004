# Importing a module registers its heads, backbones and architectures with Detectron2.
from ocr_panoptic.segfix.head import SegFixHead
from ocr_panoptic.segfix.network import SegFix

from .build import build_model
from .context_head import ContextSemSegHead
from .dilated_resnet import build_dilated_resnet_backbone
from .inference_model import InferenceModel, deploy
from .ocr_sem_seg_fpn_head import OCRSemSegFPNHead
from .semantic_segmentor import OCRSemanticSegmentor
from .timm_backbone import TimmBackbone
from .timm_fpn import build_timm_fpn_backbone
from .timm_simple_fpn import build_timm_simple_fpn_backbone

__all__ = [
    "ContextSemSegHead",
    "InferenceModel",
    "OCRSemSegFPNHead",
    "OCRSemanticSegmentor",
    "SegFix",
    "SegFixHead",
    "TimmBackbone",
    "build_dilated_resnet_backbone",
    "build_model",
    "build_timm_fpn_backbone",
    "build_timm_simple_fpn_backbone",
    "deploy",
]
