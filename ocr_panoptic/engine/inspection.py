"""Run a trained model on single images: for the demo, and for a closer look in the report."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import Metadata, MetadataCatalog
from detectron2.data import transforms as T
from detectron2.data.detection_utils import convert_image_to_rgb, read_image
from torch import Tensor, nn

from ocr_panoptic.config import is_semantic
from ocr_panoptic.data import SemanticDatasetMapper, build_semantic_augmentation
from ocr_panoptic.layers import ContextScheme, RegionContext
from ocr_panoptic.modeling.inference import upsample_argmax
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
        the model's input for this image, resized as the config says for tests.
    """
    if is_semantic(cfg):
        resize = T.AugmentationList(build_semantic_augmentation(cfg, is_train=False))
    else:
        resize = T.ResizeShortestEdge(cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST)
    inputs = T.AugInput(image)
    resize(inputs)
    tensor = torch.as_tensor(np.ascontiguousarray(inputs.image.transpose(2, 0, 1)))
    return {"image": tensor, "height": image.shape[0], "width": image.shape[1]}


def predict(cfg: CfgNode, model: nn.Module, image: np.ndarray) -> dict[str, Any]:
    """
    Args:
        model: in evaluation mode.
        image: uint8 [H,W,3] BGR.

    Returns:
        the model's output for this image, see Detectron2's `PanopticFPN.forward` and
        `OCRSemanticSegmentor.forward`.
    """
    if cfg.INPUT.FORMAT == "RGB":
        image = image[:, :, ::-1]
    with torch.inference_mode():
        return model([model_input(cfg, image)])[0]


def inspect_record(cfg: CfgNode, model: nn.Module, record: dict[str, Any]) -> Inspection:
    """
    What a model predicts for one image of a data set, and what leads to it: the coarse prediction
    and, where the context scheme has them, the soft object regions and the relation of the pixels
    to them.

    Args:
        model: in evaluation mode; an `OCRSemanticSegmentor`, or a `PanopticFPN` whose semantic head
            is Detectron2's or `OCRSemSegFPNHead`.
        record: of a Detectron2 data set.
    """
    pixels = read_image(record["file_name"], format=cfg.INPUT.FORMAT)
    if is_semantic(cfg):
        inputs = SemanticDatasetMapper(cfg, is_train=False)(record)
    else:
        inputs = model_input(cfg, pixels)
    head = model.sem_seg_head
    context = getattr(head, "context", getattr(head, "ocr", None))
    with torch.inference_mode():
        output = model([inputs])[0]
        with _watched(context) as seen:
            if is_semantic(cfg):
                logits = model.layers([inputs])
            else:
                images = model.preprocess_image([inputs])
                logits = head.layers(model.backbone(images.tensor))
    coarse, refined = logits if isinstance(logits, tuple) else (None, logits)

    size = tuple(inputs["image"].shape[1:])
    if is_semantic(cfg):
        padded = tuple(-(-side // model.divisor) * model.divisor for side in size)
    else:
        padded = tuple(images.tensor.shape[2:])
    # Rows and columns of the features that are not padding, the last ones perhaps in part.
    inside = tuple(
        -(-side * features // whole)
        for side, features, whole in zip(size, refined.shape[2:], padded, strict=True)
    )
    align_corners = getattr(head, "align_corners", False)

    def labels(logits: Tensor) -> np.ndarray:
        """[H,W] as the model itself makes them."""
        sizes = pixels.shape[:2], size, padded
        return upsample_argmax(logits, *sizes, align_corners)[0].cpu().numpy()

    regions, relation = seen.get("regions"), seen.get("relation")
    panoptic = output.get("panoptic_seg")
    return Inspection(
        image=convert_image_to_rgb(pixels, cfg.INPUT.FORMAT),
        panoptic=None if panoptic is None else Segments(panoptic[0].cpu().numpy(), panoptic[1]),
        refined=output["labels"].cpu().numpy() if panoptic is None else labels(refined),
        coarse=None if coarse is None else labels(coarse),
        regions=None if regions is None else _regions(regions[0], inside),
        relation=(
            None
            if relation is None
            else relation[0].float().cpu().numpy()[:, : inside[0], : inside[1]]
        ),
        cells=(
            None
            if regions is None
            else tuple(
                _cell_edges(*sizes, align_corners)
                for sizes in zip(
                    inside, refined.shape[2:], padded, size, pixels.shape[:2], strict=True
                )
            )
        ),
    )


@contextmanager
def _watched(context: ContextScheme | None) -> Iterator[dict[str, Tensor]]:
    """
    What passes through a scheme while it runs: "regions", the logits m [N,K,h,w] that it sees, if
    it depends on them, and "relation" [N,K,h,w], if it is computed.
    """
    seen: dict[str, Tensor] = {}
    if context is None:
        yield seen
        return

    def keep_regions(module: nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
        if context.uses_regions and not context.needs_truth:
            seen["regions"] = inputs[1]

    hook = context.register_forward_pre_hook(keep_regions)
    if isinstance(context, RegionContext):
        original = context.relation

        def keep_relation(x: Tensor, m: Tensor, f: Tensor) -> Tensor:
            w = original(x, m, f)
            if "regions" in seen:  # else they are not those of the classes
                seen["relation"] = w.unflatten(2, x.shape[2:])
            return w

        context.relation = keep_relation
    try:
        yield seen
    finally:
        hook.remove()
        context.__dict__.pop("relation", None)


def _cell_edges(
    inside: int, features: int, padded: int, side: int, pixels: int, align_corners: bool
) -> np.ndarray:
    """
    Where the features' cells begin and end along one axis: half-way between the positions that
    resizing gives them.

    Args:
        inside: cells that are not padding alone.
        features: cells of the padded input, whose side is ``padded``.
        side: of the input without padding.
        pixels: the same of the image file.

    Returns:
        float64 [inside + 1], in pixels of the image file from 0 to ``pixels``
    """
    edges = np.arange(inside + 1.0)
    if align_corners and features > 1:
        edges = (edges - 0.5) * (padded - 1) / (features - 1) + 0.5
    else:
        edges *= padded / features
    edges[[0, -1]] = 0, side
    return edges.clip(0, side) * pixels / side


def _regions(logits: Tensor, inside: tuple[int, int]) -> np.ndarray:
    """
    The soft object regions: the paper's spatial softmax, over the pixels that are not padding.

    Args:
        logits: of the regions [K,h,w] of the padded input.
        inside: rows and columns that are not padding.

    Returns:
        float32 [K,*inside], of sum 1 for each class.
    """
    weights = logits[:, : inside[0], : inside[1]].float()
    return weights.flatten(1).softmax(dim=1).view_as(weights).cpu().numpy()
