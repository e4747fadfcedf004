from .aspp import ASPOCR, ASPP
from .bands import pixel_cross_entropy
from .class_losses import (
    binary_cross_entropy,
    dice_loss,
    lovasz_softmax,
    rarity_weighted_cross_entropy,
)
from .context_scheme import ContextScheme, NoContext, run_part
from .conv import ConvNormReLU, CPUSyncBatchNorm
from .criss_cross import CrissCross, CrissCrossAttention
from .dual_attention import ChannelAttention, DualAttention, PositionAttention
from .folding import fold_norms, to_channels_last
from .ocr import OCR, RegionContext, gather_regions, pixel_region_relation
from .ocr_variants import ACFOCR, DoubleAttention, DoubleAttentionOCR, GroundTruthOCR
from .ppm import PPM, PPMOCR
from .resize import one_hot_labels, resize
from .rmi import region_mutual_information
from .scale_attention import ScaleAttention
from .segmentation_transformer import JointTransformer, SegmentationTransformer
from .self_attention import SelfAttention
