# The imports register heads, backbones and architectures with Detectron2, and hrnet2x_w20 with
# timm, and the context schemes.
from .build import build_model
from .context_head import ContextSemSegHead
from .dilated_resnet import build_dilated_resnet_backbone
from .hrnet2x import HRNet2x
from .inference_model import InferenceModel, deploy
from .ocr_sem_seg_fpn_head import OCRSemSegFPNHead
from .semantic_segmentor import OCRSemanticSegmentor
from .timm_backbone import TimmBackbone
from .timm_pyramids import build_timm_fpn_backbone, build_timm_simple_fpn_backbone
