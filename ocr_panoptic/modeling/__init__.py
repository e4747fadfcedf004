# Importing a module registers its heads, backbones and architectures with Detectron2.
# Detectron2's dilated ResNet is registered by its DeepLab project.
import detectron2.projects.deeplab  # noqa: F401

from .context_head import ContextSemSegHead
from .ocr_sem_seg_fpn_head import OCRSemSegFPNHead
from .semantic_segmentor import OCRSemanticSegmentor
from .timm_backbone import TimmBackbone

__all__ = ["ContextSemSegHead", "OCRSemSegFPNHead", "OCRSemanticSegmentor", "TimmBackbone"]
