"""Test-time augmentation of Panoptic-FPN with several image sizes and mirror images."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from detectron2.config import CfgNode
from detectron2.modeling import DatasetMapperTTA, GeneralizedRCNNWithTTA
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from detectron2.modeling.postprocessing import detector_postprocess
from detectron2.structures import Instances
from fvcore.transforms import HFlipTransform
from torch import Tensor

from ocr_panoptic.formats.pictures import TooThin, thin_fault

from .inference import Size, resized_classes


class View(NamedTuple):
    """A resized and possibly mirrored copy of an image, with the network's results for it."""

    logits: Tensor  # semantic logits, float32 [1, K, h, w]
    image_size: Size  # size of the view without padding
    covered: Size  # size of the padded view, which the logits cover
    features: dict[str, Tensor]  # backbone features by name, [1, C, h, w]
    found: Instances  # detected instances, in the view's coordinates

    def classes(self, size: Size) -> Iterator[Tensor]:
        """Yield the view's scores, resized to ``size``, in groups of classes."""
        return resized_classes(self.logits, size, self.image_size, self.covered)


def see_augmented(
    cfg: CfgNode, network: PanopticFPN, see: Callable[[dict], View], inputs: dict
) -> tuple[Tensor, Instances]:
    """
    Return the semantic logits and the instances of an image, merged over its augmented views.

    The logits, float32 [1, K, height, width], are averaged over the views. Detectron2's
    ``GeneralizedRCNNWithTTA`` merges the instances: non-maximum suppression selects boxes from all
    views, and the mask of each box is averaged over all views. Masks are bool [height, width].

    Args:
        cfg: config, in which TEST.AUG sets the sizes of the views and whether each view is also
            mirrored.
        network: network that predicts the masks.
        see: function that runs the network on the input of one view.
        inputs: dict with "image" [C, H, W] and optionally "height" and "width" of the result, by
            default the size of the image.
    """
    aug = cfg.TEST.AUG
    image = inputs["image"]
    height, width = image.shape[1:]
    fault = thin_fault(height, width, aug.MAX_SIZE, "TEST.AUG.MAX_SIZE")
    if fault and any(aug.MIN_SIZES):
        raise TooThin(fault)
    if len(image) != 3:  # Pillow would take 4 channels for colours with transparency
        image = image.float()
    size = inputs.get("height", height), inputs.get("width", width)
    inputs = {"image": image, "height": size[0], "width": size[1]}
    flips = aug.FLIP and width > 1  # Detectron2 fails on a mirrored column of pixels
    mapper = DatasetMapperTTA(aug.MIN_SIZES, aug.MAX_SIZE, flips)
    tta = GeneralizedRCNNWithTTA(cfg, network, mapper)
    views, transforms = tta._get_augmented_inputs(inputs)
    with tta._turn_off_roi_heads(["mask_on"]):
        seen = [see(view) for view in views]
    total = _mean_logits(seen, transforms, size)
    boxes = [
        torch.from_numpy(t.inverse().apply_box(view.found.pred_boxes.tensor.cpu().numpy()))
        for view, t in zip(seen, transforms)
    ]
    scores = torch.cat([view.found.scores for view in seen])
    classes = torch.cat([view.found.pred_classes for view in seen])
    device = scores.device
    merged = tta._merge_detections(torch.cat(boxes).to(device), scores, classes, size)
    outputs = [
        network.roi_heads.forward_with_given_boxes(view.features, [boxes.to(device)])[0]
        for view, boxes in zip(seen, tta._rescale_detected_boxes(views, merged, transforms))
    ]
    merged.pred_masks = tta._reduce_pred_masks(outputs, transforms)
    return total, detector_postprocess(merged, *size)


def _mean_logits(seen: list[View], transforms: list, size: Size) -> Tensor:
    logits = seen[0].logits
    total = torch.zeros(1, logits.shape[1], *size, device=logits.device)
    for view, transform in zip(seen, transforms):
        first = 0
        is_mirrored = any(isinstance(part, HFlipTransform) for part in transform.transforms)
        for group in view.classes(size):
            part = total[:, first : first + group.shape[1]]
            part += group.flip(-1) if is_mirrored else group
            first += group.shape[1]
    return total.div_(len(seen))
