# Importing a head registers it with Detectron2.
from .ocr_sem_seg_fpn_head import OCRSemSegFPNHead

__all__ = ["OCRSemSegFPNHead"]
