"""
Panoptic-FPN's instance prediction, from features to boxes and masks, for one image of any size.

Detectron2's own code branches on the number of boxes, which an exporter cannot follow. This module
repeats the computation of Detectron2's ``RPN`` and ``StandardROIHeads`` without such branches.

Shape shorthand: R proposals, M instances, T thing classes, L levels of the FPN, C channels,
h w feature size, s side of a mask or of a box's pooled features.
"""

import torch
import torch.nn.functional as F
from detectron2.modeling import PanopticFPN, StandardROIHeads
from detectron2.modeling.poolers import ROIPooler
from detectron2.modeling.proposal_generator import RPN
from detectron2.modeling.roi_heads.mask_head import BaseMaskRCNNHead
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.modeling.exact_roi_heads import ExactROIHeads
from ocr_panoptic.modeling.ignored_pixels import IgnoringRPN
from ocr_panoptic.modeling.inference import Size

from .operators import nms, pool_boxes

Features = dict[str, Tensor]


def check_instances(model: PanopticFPN) -> None:
    """Raise UserError if the model's RPN or its ROI heads cannot be exported."""
    rpn, heads = model.proposal_generator, model.roi_heads
    # Subclasses are refused, since they may compute something else.
    for key, part, known in (
        ("MODEL.PROPOSAL_GENERATOR.NAME", rpn, (RPN, IgnoringRPN)),
        ("MODEL.ROI_HEADS.NAME", heads, (StandardROIHeads, ExactROIHeads)),
    ):
        if type(part) not in known:
            raise UserError(
                f"{key} is {type(part).__name__}; only {known[0].__name__} can be exported"
            )
    if not isinstance(getattr(heads, "mask_head", None), BaseMaskRCNNHead):
        raise UserError(
            "MODEL.MASK_ON is False, or MODEL.ROI_MASK_HEAD.NAME is not a Mask R-CNN head; only "
            "panoptic models with such a mask head can be exported"
        )


def find_instances(
    model: PanopticFPN, features: Features, size: Size
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """
    Return boxes, scores, classes and masks of the image's instances.

    Boxes [M, 4] are x0, y0, x1, y1 in pixels of the image. Scores [M] are in descending order,
    classes [M] are int64, and masks [M, s, s] are probabilities inside the boxes.

    Args:
        features: dict of backbone features, each [1, C, h, w].
        size: height and width of the image without padding.
    """
    heads = model.roi_heads
    proposals = find_proposals(model.proposal_generator, features, size)
    boxes, scores, classes = _classify(heads, features, proposals, size)
    maps = [features[name] for name in heads.mask_in_features]
    logits = heads.mask_head.layers(pool(heads.mask_pooler, maps, boxes))
    if logits.shape[1] == 1:  # all classes share a mask
        return boxes, scores, classes, logits[:, 0].sigmoid()
    own = classes[:, None, None, None].expand(-1, 1, *logits.shape[2:])
    return boxes, scores, classes, logits.gather(1, own)[:, 0].sigmoid()


def find_proposals(rpn: RPN, features: Features, size: Size) -> Tensor:
    """Return the boxes [R, 4] of the best proposals, after NMS in each FPN level."""
    maps = [features[name] for name in rpn.in_features]
    predictions = zip(rpn.anchor_generator(maps), *rpn.rpn_head(maps), strict=True)
    level_boxes, level_scores = [], []
    for anchors, logits, deltas in predictions:
        scores = logits[0].permute(1, 2, 0).flatten()
        deltas = deltas[0].unflatten(0, (-1, 4)).permute(2, 3, 0, 1).flatten(0, 2)
        count = torch.sym_min(rpn.pre_nms_topk[False], scores.shape[0])
        scores, best = scores.topk(count)
        boxes = rpn.box2box_transform.apply_deltas(deltas[best], anchors.tensor[best])
        level_boxes.append(clipped(boxes, size))
        level_scores.append(scores)
    boxes = torch.cat(level_boxes)
    # Each level is a separate group, in which boxes of other levels have score -inf.
    last = len(level_scores) - 1
    padded = [
        F.pad(scores[None], (0, 0, level, last - level), value=-torch.inf)
        for level, scores in enumerate(level_scores)
    ]
    scores = torch.cat(padded, dim=1)
    sides = boxes[:, 2:] - boxes[:, :2]
    scores = torch.where((sides > rpn.min_box_size).all(dim=1), scores, -torch.inf)
    # -1e30 is below every score except -inf.
    kept = nms(boxes[None], scores[None], rpn.nms_thresh, -1e30, rpn.post_nms_topk[False])
    return boxes[kept[:, 2]]


def _classify(
    heads: StandardROIHeads, features: Features, proposals: Tensor, size: Size
) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes [M, 4], scores [M] and classes [M] after box regression and per-class NMS."""
    predictor = heads.box_predictor
    maps = [features[name] for name in heads.box_in_features]
    logits, deltas = predictor(heads.box_head(pool(heads.box_pooler, maps, proposals)))
    scores = logits.softmax(dim=1)[:, :-1].T  # [T, R]
    boxes = predictor.box2box_transform.apply_deltas(deltas, proposals)
    boxes = clipped(boxes.unflatten(1, (-1, 4)), size).transpose(0, 1)  # [T or 1, R, 4]
    # Boxes are predicted per class, or shared by all classes.
    scores = scores[None] if boxes.shape[0] == 1 else scores[:, None]
    iou, least = predictor.test_nms_thresh, predictor.test_score_thresh
    kept = nms(boxes, scores, iou, least, predictor.test_topk_per_image)
    which, group, box = kept.unbind(1)
    return boxes[which, box], scores[which, group, box], which + group


def pool(pooler: ROIPooler, maps: list[Tensor], boxes: Tensor) -> Tensor:
    """
    Return the features of each box, pooled by ROIAlign, [R, C, s, s].

    Each box is pooled from the FPN level that fits the box's size.

    Args:
        maps: feature map of each FPN level, [1, C, h, w], the finest first.
        boxes: x0, y0, x1, y1 of each box, [R, 4].
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1).sqrt()
    levels = torch.log2(sides / pooler.canonical_box_size + 1e-8) + pooler.canonical_level
    levels = levels.floor().clamp(pooler.min_level, pooler.max_level) - pooler.min_level
    aligns = list(pooler.level_poolers)
    return pool_boxes(
        maps,
        [align.spatial_scale for align in aligns],
        boxes,
        levels.to(torch.int64),
        aligns[0].output_size[0],
        aligns[0].sampling_ratio,
        aligns[0].aligned,
    )


def clipped(boxes: Tensor, size: Size) -> Tensor:
    """Return boxes [..., 4] clipped to an image's height and width."""
    height, width = size
    x0, y0, x1, y1 = boxes.unbind(-1)
    sides = x0.clamp(0, width), y0.clamp(0, height), x1.clamp(0, width), y1.clamp(0, height)
    return torch.stack(sides, dim=-1)
