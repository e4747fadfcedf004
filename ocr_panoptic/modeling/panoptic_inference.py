"""Panoptic-FPN at inference, from semantic logits at their own size to labels."""

from collections.abc import Callable, Iterator
from typing import Any

from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from detectron2.modeling.postprocessing import detector_postprocess, sem_seg_postprocess
from torch import Tensor

from ocr_panoptic.layers import resize

from .inference import resized_classes, upsample_argmax
from .panoptic_merge import merge_panoptic
from .refined_head import RefinedHead

Size = tuple[int, int]


class Prediction(dict[str, Any]):
    """
    A model's output for an image: "labels" int64 [H, W], "instances" and "panoptic_seg".

    ``output["sem_seg"]``, the scores of all classes [K, H, W] that Detectron2's model returns, is
    computed when somebody asks for it; it is the largest part, and labels are most often enough.

    Attributes:
        class_scores: gives the same class by class, float32 [1, H, W], which takes less memory.
    """

    def __init__(
        self,
        sem_seg: Callable[[], Tensor],
        class_scores: Callable[[], Iterator[Tensor]],
        **found: Any,
    ):
        super().__init__(found)
        self._sem_seg = sem_seg
        self.class_scores = class_scores

    def __missing__(self, key: str) -> Tensor:
        if key != "sem_seg":
            raise KeyError(key)
        return self.setdefault(key, self._sem_seg())


class PanopticInference(PanopticFPN):
    """
    Detectron2's ``PanopticFPN`` at inference, with the same results: semantic logits are upsampled
    class by class and end in labels, and the merge does not wait for each instance.
    """

    @classmethod
    def convert(cls, model: PanopticFPN) -> None:
        """Turn a model into one of this class, in place."""
        model.__class__ = cls

    def inference(
        self, batched_inputs: list[dict], do_postprocess: bool = True
    ) -> list[Prediction] | tuple[list, Tensor]:
        """See Detectron2's; the outputs are :class:`Prediction`."""
        if not do_postprocess:
            return super().inference(batched_inputs, do_postprocess=False)
        images = self.preprocess_image(batched_inputs)
        features = self.backbone(images.tensor)
        head = self.sem_seg_head
        logits = head.layers(features)
        if isinstance(head, RefinedHead):
            logits = logits[1]
        proposals, _ = self.proposal_generator(images, features, None)
        detections, _ = self.roi_heads(images, features, proposals, None)
        covered = tuple(head.common_stride * side for side in logits.shape[2:])
        return [
            self._prediction(
                one[None].float().contiguous(),
                found,
                (inputs.get("height", size[0]), inputs.get("width", size[1])),
                tuple(size),
                covered,
            )
            for one, found, inputs, size in zip(
                logits, detections, batched_inputs, images.image_sizes
            )
        ]

    def _prediction(
        self, logits: Tensor, found: Any, size: Size, image_size: Size, covered: Size
    ) -> Prediction:
        instances = detector_postprocess(found, *size)
        labels = upsample_argmax(logits, size, image_size, covered)[0]
        merged = merge_panoptic(
            instances,
            labels,
            self.combine_overlap_thresh,
            self.combine_stuff_area_thresh,
            self.combine_instances_score_thresh,
        )
        return Prediction(
            lambda: sem_seg_postprocess(resize(logits, covered)[0], image_size, *size),
            lambda: resized_classes(logits, size, image_size, covered),
            labels=labels,
            instances=instances,
            panoptic_seg=merged,
        )
