# The imports register heads, an RPN, backbones and architectures with Detectron2, hrnet2x_w20 with
# timm, and the context schemes.
from . import compared_schemes
from .context_head import ContextSemSegHead
from .dilated_resnet import build_dilated_resnet_backbone
from .exact_roi_heads import ExactMaskHead, ExactROIHeads, ExactROIPooler
from .hrnet2x import HRNet2x
from .ignored_pixels import IgnoringRPN
from .inference_model import InferenceModel, deploy
from .ocr_sem_seg_fpn_head import OCRSemSegFPNHead
from .panoptic_segmentor import PanopticSegmentor
from .semantic_segmentor import OCRSemanticSegmentor
from .timm_backbone import TimmBackbone
from .timm_pyramids import build_timm_fpn_backbone, build_timm_simple_fpn_backbone
