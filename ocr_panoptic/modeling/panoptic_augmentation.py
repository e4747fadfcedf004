"""Test-time augmentation of Panoptic-FPN: each image is seen at several sizes and mirrored."""

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

from .inference import Size, resized_classes


class View(NamedTuple):
    """The network's results for one view of an image [H, W]."""

    logits: Tensor  # of the semantic head, float32 [1, K, h, w]
    image_size: Size
    covered: Size  # size of the padded image, which the logits cover
    features: dict[str, Tensor]  # of the backbone, [1, C, h, w]
    found: Instances  # in the image's coordinates

    def classes(self, size: Size) -> Iterator[Tensor]:
        """Yield the scores of the image, resized to ``size``, in groups of classes."""
        return resized_classes(self.logits, size, self.image_size, self.covered)


def see_augmented(
    cfg: CfgNode, network: PanopticFPN, see: Callable[[dict], View], inputs: dict
) -> tuple[Tensor, Instances]:
    """
    Return mean logits, float32 [1, K, height, width], and instances with masks of that size.

    TEST.AUG sets the sizes of the views, and whether each is also mirrored. Detectron2's
    ``GeneralizedRCNNWithTTA`` computes boxes and masks: non-maximum suppression selects boxes from
    all views, and each box gets the mean of the masks that the views give it. Semantic logits are
    averaged at the size of the result. Each view passes through the network once, by itself. Its
    features are kept for the masks: 80 MiB for a view of 800 x 1216 pixels.

    ``see`` runs the network on the input of a view. ``inputs`` has "image" [C, H, W] and optionally
    "height" and "width" of the result, which default to the size of the image.
    """
    aug = cfg.TEST.AUG
    image = inputs["image"]
    height, width = image.shape[1:]
    if len(image) != 3:  # Pillow would take 4 channels for colours with transparency
        image = image.float()
    size = inputs.get("height", height), inputs.get("width", width)
    inputs = {"image": image, "height": size[0], "width": size[1]}
    mapper = DatasetMapperTTA(aug.MIN_SIZES, aug.MAX_SIZE, aug.FLIP)
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
