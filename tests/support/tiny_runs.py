"""Settings for training runs of a few seconds, on a few small scenes."""

from pathlib import Path

import cv2
import numpy as np
import torch
from detectron2.config import CfgNode
from fvcore.nn import weight_init
from PIL import Image
from torch import nn

from ocr_panoptic.formats.pictures import reordered
from ocr_panoptic.modeling.inference_output import InferenceOutput
from ocr_panoptic.modeling.refined_head import RefinedHead
from ocr_panoptic.predict.single_image import model_input

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
OCR_CONFIG = CONFIGS / "quick_schedules/panoptic_fpn_ocr_R_18_scenes.yaml"
PLAIN_CONFIG = CONFIGS / "quick_schedules/panoptic_fpn_R_18_scenes.yaml"
SEMANTIC_CONFIG = CONFIGS / "quick_schedules/semantic_ocr_R_18_scenes.yaml"

# Settings for a few iterations on images of 64 pixels, instead of minutes on images of 160.
TINY = [
    *("SOLVER.IMS_PER_BATCH", "2", "SOLVER.MAX_ITER", "3", "SOLVER.STEPS", "(2,)"),
    *("INPUT.MIN_SIZE_TRAIN", "(64,)", "INPUT.MIN_SIZE_TEST", "64"),
    *("MODEL.RESNETS.DEPTH", "50", "MODEL.RESNETS.WIDTH_PER_GROUP", "8"),  # 0.5 million weights
    *("MODEL.RESNETS.RES2_OUT_CHANNELS", "16", "MODEL.RESNETS.STEM_OUT_CHANNELS", "8"),
    *("MODEL.FPN.OUT_CHANNELS", "32", "MODEL.ROI_BOX_HEAD.FC_DIM", "32"),
    *("MODEL.ROI_MASK_HEAD.CONV_DIM", "32", "MODEL.SEM_SEG_HEAD.CONVS_DIM", "32"),
    *("DATALOADER.NUM_WORKERS", "0", "MODEL.DEVICE", "cpu"),
]
# Further settings for heads with OCR.
TINY_OCR = ["MODEL.OCR.CHANNELS", "32", "MODEL.OCR.KEY_CHANNELS", "16"]
# Further settings for predicting segments after three iterations.
SEGMENTS = [
    *("MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0", "MODEL.RESNETS.DEPTH", "18"),
    *("MODEL.RESNETS.RES2_OUT_CHANNELS", "64", "MODEL.RESNETS.STEM_OUT_CHANNELS", "64"),
]
# Further settings for semantic segmentation, with the network of timm's tests.
TINY_SEMANTIC = [
    *("MODEL.TIMM.NAME", "test_resnet", "MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", "32"),
    *("INPUT.CROP.SIZE", "[48, 48]", "INPUT.MIN_SIZE_TRAIN", "(0,)", "INPUT.MIN_SIZE_TEST", "0"),
    *("DATASETS.TRAIN", "('tiny_sem_train',)", "DATASETS.TEST", "('tiny_sem_val',)"),
]
# Further settings for inference in sliding windows.
TILES = [
    *("TEST.SLIDING_WINDOW.SIZE", "[40, 40]", "TEST.SLIDING_WINDOW.STRIDE", "[24, 30]"),
    *("INPUT.MIN_SIZE_TEST", "0"),
]


def write_video(path: Path, images: list[Path]) -> None:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 64))
    for image in images:
        writer.write(cv2.imread(str(image)))
    writer.release()


def images_of(root: Path) -> list[Path]:
    return sorted((root / "tiny/raw/val/images").glob("*.jpg"))


def make_labels_vary(model: nn.Module, record: dict) -> None:
    """
    Give an untrained semantic head large weights, so that the predicted labels vary.

    Biases are set so that all classes have the same mean logit on this record's image.
    """
    head, means = model.sem_seg_head, {}
    for module in head.modules():
        if isinstance(module, nn.Conv2d):
            weight_init.c2_msra_fill(module)
    refined = isinstance(head, RefinedHead)
    parts = (head.coarse_predictor, head.refined_predictor) if refined else (head.predictor,)
    hooks = [
        part.register_forward_hook(
            lambda module, _, output: means.update({module: output.mean(dim=(0, 2, 3))})
        )
        for part in parts
    ]
    with torch.no_grad():
        model([record])
        for hook, (part, mean) in zip(hooks, means.items(), strict=True):
            hook.remove()
            part.bias -= mean


def predict(cfg: CfgNode, model: nn.Module, bgr: np.ndarray) -> InferenceOutput:
    """Return an ``InferenceModel``'s or ``RefinedModel``'s output for a BGR image [H, W, 3]."""
    image = reordered(bgr, "BGR") if cfg.INPUT.FORMAT == "RGB" else bgr
    with torch.inference_mode():
        return model([model_input(cfg, image)])[0]


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))
