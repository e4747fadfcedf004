"""
The published checkpoint files of docs/checkpoints.md, with the configs and settings they need.

The settings are written here by hand. Tests compare them with the settings that the converter finds
in a file.
"""

from typing import NamedTuple

from detectron2.config import CfgNode

from ocr_panoptic.config.files import load_config
from support.loaded_configs import CONFIGS

CITYSCAPES = "Cityscapes-SemanticSegmentation/ocr_HRNet_W48_s4_40k_bs8"
R_101 = "Cityscapes-SemanticSegmentation/ocr_R_101_d8_40k_bs8"
ADE20K = "ADE20K-SemanticSegmentation/ocr_HRNet_W48_s4_150k_bs16"
LIP = "LIP-SemanticSegmentation/ocr_HRNet_W48_s4_100k_bs32"
CONTEXT = "PASCAL-Context-SemanticSegmentation/ocr_HRNet_W48_s4_30k_bs16"
COCO_STUFF = "COCO-Stuff-SemanticSegmentation/ocr_HRNet_W48_s4_10k_60k_bs16"
SEGFIX = "SegFix/segfix_HRNet_W48_cityscapes_80k_bs16"

EXACT = ("MODEL.PAD_TO_MULTIPLE", "1")
LINEAR = (*EXACT, "INPUT.INTERPOLATION", "bilinear")
ALIGNED = ("MODEL.ALIGN_CORNERS", "True")
CONTRACTED = ("MODEL.RESNETS.CONTRACT_DILATION", "True")
HRNET_OCR = (*ALIGNED, *LINEAR)
OPENSEG = (
    *(*ALIGNED, *EXACT, "INPUT.FORMAT", "BGR"),
    *("MODEL.OCR.NEGATIVE_SLOPE", "0.01", "MODEL.SEM_SEG_HEAD.COARSE_KERNEL", "3"),
)
OPENSEG_SEGFIX = (*ALIGNED, *EXACT, "INPUT.FORMAT", "BGR", "MODEL.OCR.NEGATIVE_SLOPE", "0.01")
MMSEG = (*LINEAR, "MODEL.TIMM.ENLARGE_TWICE", "True")
W18_COARSE = ("MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", "270")
HR18 = (*MMSEG, "MODEL.TIMM.NAME", "hrnet_w18", *W18_COARSE)
HR18S = (*MMSEG, "MODEL.TIMM.NAME", "hrnet_w18_small_v2", *W18_COARSE)
LONG_SIDE = ("INPUT.MAX_SIZE_TEST", "520")
MMSEG_SIZES = ("INPUT.MIN_SIZE_TEST", "512", "INPUT.MAX_SIZE_TEST", "2048")


class Published(NamedTuple):
    """The settings of a published checkpoint file."""

    recipe: str  # config file, relative to the folder configs and without suffix
    opts: tuple[str, ...]  # overrides KEY VALUE ... that the user has to give
    needed: tuple[str, ...]  # overrides that the weights need; the converter finds them itself

    def load(self, *opts: str) -> CfgNode:
        return load_config(str(CONFIGS / f"{self.recipe}.yaml"), [*self.needed, *self.opts, *opts])


FILES = {
    "hrnet_cityscapes": Published(CITYSCAPES, (), HRNET_OCR),
    "hrnet_lip": Published(LIP, (), HRNET_OCR),
    "hrnet_pascal_context": Published(CONTEXT, LONG_SIDE, HRNET_OCR),
    "hrnet_ade20k": Published(ADE20K, LONG_SIDE, HRNET_OCR),
    "hrnet_coco_stuff_10k": Published(COCO_STUFF, LONG_SIDE, HRNET_OCR),
    "openseg_R_101_cityscapes": Published(
        *(R_101, ()),
        (
            *(*OPENSEG, *CONTRACTED, "MODEL.RESNETS.STEM_CEIL_MODE", "True"),
            *("MODEL.PIXEL_MEAN", "[102.9801, 115.9465, 122.7717]"),
            *("MODEL.PIXEL_STD", "[1.0, 1.0, 1.0]"),
        ),
    ),
    "openseg_cityscapes": Published(CITYSCAPES, (), OPENSEG),
    "openseg_ade20k": Published(ADE20K, ("MODEL.PAD_TO_MULTIPLE", "8"), OPENSEG),
    "openseg_lip": Published(LIP, (), OPENSEG),
    "openseg_pascal_context": Published(CONTEXT, (), OPENSEG),
    "openseg_coco_stuff_10k": Published(COCO_STUFF, (), OPENSEG),
    "openseg_segfix": Published(SEGFIX, (), OPENSEG_SEGFIX),
    "mmseg_HR18s_cityscapes": Published(CITYSCAPES, (), HR18S),
    "mmseg_HR18_cityscapes": Published(CITYSCAPES, (), HR18),
    "mmseg_HR48_cityscapes": Published(CITYSCAPES, (), MMSEG),
    "mmseg_R_101_cityscapes": Published(
        *(R_101, ()),
        (
            *(*LINEAR, *CONTRACTED, "MODEL.RESNETS.STEM_OUT_CHANNELS", "64"),
            *("MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", "256"),
        ),
    ),
    "mmseg_HR18s_ade20k": Published(ADE20K, MMSEG_SIZES, HR18S),
    "mmseg_HR18_ade20k": Published(ADE20K, MMSEG_SIZES, HR18),
    "mmseg_HR48_ade20k": Published(ADE20K, MMSEG_SIZES, MMSEG),
    "nvidia_cityscapes": Published("HMSA/hmsa_HRNet_W48_cityscapes_65k_bs8", (), ()),
}
