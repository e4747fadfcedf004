from .conv import ConvNormReLU
from .ocr import OCR, gather_regions, pixel_region_relation

__all__ = ["OCR", "ConvNormReLU", "gather_regions", "pixel_region_relation"]
