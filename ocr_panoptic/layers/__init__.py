from .context_scheme import ContextScheme
from .conv import ConvNormReLU
from .gt_ocr import GroundTruthOCR, one_hot_labels
from .ocr import OCR, RegionContext, gather_regions, pixel_region_relation

__all__ = [
    "OCR",
    "ContextScheme",
    "ConvNormReLU",
    "GroundTruthOCR",
    "RegionContext",
    "gather_regions",
    "one_hot_labels",
    "pixel_region_relation",
]
