"""Run a trained model on single images: for the demo, and for a closer look in the report."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from detectron2.config import CfgNode
from detectron2.data import Metadata, MetadataCatalog
from detectron2.data import transforms as T
from detectron2.data.detection_utils import convert_image_to_rgb, read_image
from detectron2.modeling.postprocessing import sem_seg_postprocess
from torch import Tensor, nn

from ocr_panoptic.visualization import Inspection, Segments


def class_metadata(cfg: CfgNode) -> Metadata:
    """
    Returns:
        the names and colours of the classes, of DATASETS.TEST[0].

    Raises:
        ValueError: DATASETS.TEST is empty, or has no semantic classes.
    """
    if not cfg.DATASETS.TEST:
        raise ValueError("DATASETS.TEST is empty; its first data set gives the classes' names")
    metadata = MetadataCatalog.get(cfg.DATASETS.TEST[0])
    if not hasattr(metadata, "stuff_classes"):
        raise ValueError(
            f"DATASETS.TEST[0] = {cfg.DATASETS.TEST[0]} has no stuff_classes; name a panoptic or "
            "semantic data set that is registered"
        )
    return metadata


def model_input(cfg: CfgNode, image: np.ndarray) -> dict[str, Any]:
    """
    Args:
        image: uint8 [H,W,3] in the channel order INPUT.FORMAT.

    Returns:
        the model's input for this image, resized as INPUT.MIN_SIZE_TEST and MAX_SIZE_TEST say.
    """
    resize = T.ResizeShortestEdge(cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST)
    resized = resize.get_transform(image).apply_image(image)
    tensor = torch.as_tensor(np.ascontiguousarray(resized.transpose(2, 0, 1)))
    return {"image": tensor, "height": image.shape[0], "width": image.shape[1]}


def predict(cfg: CfgNode, model: nn.Module, image: np.ndarray) -> dict[str, Any]:
    """
    Args:
        model: in evaluation mode.
        image: uint8 [H,W,3] BGR.

    Returns:
        the model's output for this image, see Detectron2's `PanopticFPN.forward`.
    """
    if cfg.INPUT.FORMAT == "RGB":
        image = image[:, :, ::-1]
    with torch.inference_mode():
        return model([model_input(cfg, image)])[0]


def inspect_record(cfg: CfgNode, model: nn.Module, record: dict[str, Any]) -> Inspection:
    """
    What a Panoptic-FPN predicts for one image of a data set and, for the OCR head, what leads to
    it: the coarse prediction and the soft object regions.

    Args:
        model: in evaluation mode; a `PanopticFPN` whose semantic head is Detectron2's or has
            `layers(features) -> (coarse, refined)`, logits [N,K,h,w] at `common_stride`.
        record: of a Detectron2 data set.
    """
    pixels = read_image(record["file_name"], format=cfg.INPUT.FORMAT)
    inputs = model_input(cfg, pixels)
    with torch.inference_mode():
        panoptic_seg, segments_info = model([inputs])[0]["panoptic_seg"]
        images = model.preprocess_image([inputs])
        logits = model.sem_seg_head.layers(model.backbone(images.tensor))
    coarse, refined = logits if isinstance(logits, tuple) else (None, logits)

    stride = model.sem_seg_head.common_stride
    size = images.image_sizes[0]
    labels = {
        name: None if x is None else _labels(x[0], stride, size, pixels.shape[:2])
        for name, x in (("coarse", coarse), ("refined", refined))
    }
    return Inspection(
        image=convert_image_to_rgb(pixels, cfg.INPUT.FORMAT),
        panoptic=Segments(panoptic_seg.cpu().numpy(), segments_info),
        regions=None if coarse is None else _regions(coarse[0], stride, size),
        **labels,
    )


def _labels(
    logits: Tensor, stride: int, size: tuple[int, int], output_size: tuple[int, int]
) -> np.ndarray:
    """
    The label map as the model itself makes it: logits to the input's size, padding cut off, to the
    output's size, argmax.

    Args:
        logits: [K,h,w] of the padded input.
        size: height and width of the input without padding.

    Returns:
        int64 [H,W] of `output_size`.
    """
    upsampled = F.interpolate(
        logits[None].float(), scale_factor=stride, mode="bilinear", align_corners=False
    )
    return sem_seg_postprocess(upsampled[0], size, *output_size).argmax(dim=0).cpu().numpy()


def _regions(logits: Tensor, stride: int, size: tuple[int, int]) -> np.ndarray:
    """
    The soft object regions: the paper's spatial softmax, over the pixels that are not padding.

    Args:
        logits: coarse logits [K,h,w] of the padded input.
        size: height and width of the input without padding.

    Returns:
        float32 [K,ceil(height/stride),ceil(width/stride)], of sum 1 for each class.
    """
    height, width = (-(-side // stride) for side in size)
    inside = logits[:, :height, :width].float()
    return inside.flatten(1).softmax(dim=1).view_as(inside).cpu().numpy()
