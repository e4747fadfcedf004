from .acf_ocr import ACFOCR
from .asp_ocr import ASPOCR
from .context_scheme import ContextScheme
from .conv import ConvNormReLU
from .da_ocr import DoubleAttentionOCR
from .gt_ocr import GroundTruthOCR, one_hot_labels
from .joint_transformer import JointTransformer
from .ocr import OCR, RegionContext, gather_regions, pixel_region_relation
from .segmentation_transformer import SegmentationTransformer

__all__ = [
    "ACFOCR",
    "ASPOCR",
    "OCR",
    "ContextScheme",
    "ConvNormReLU",
    "DoubleAttentionOCR",
    "GroundTruthOCR",
    "JointTransformer",
    "RegionContext",
    "SegmentationTransformer",
    "gather_regions",
    "one_hot_labels",
    "pixel_region_relation",
]
