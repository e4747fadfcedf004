"""Panoptic-FPN at inference, from semantic logits at their own size to labels."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from detectron2.layers import ROIAlign
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from detectron2.modeling.postprocessing import detector_postprocess, sem_seg_postprocess
from torch import Tensor

from ocr_panoptic.layers import resize

from .confidence import confident_argmax
from .inference import resized_classes, upsample_argmax
from .panoptic_merge import merge_panoptic
from .refined_head import RefinedHead

Size = tuple[int, int]


class PanopticOutput(dict[str, Any]):
    """
    A model's output for an image: "labels" int64 [H, W], "instances" and "panoptic_seg"; with
    :attr:`PanopticInference.gives_confidence` also "confidence" float32 [H, W], the probability of
    each label.

    ``output["sem_seg"]``, the scores of all classes [K, H, W] that Detectron2's model returns, is
    computed when somebody asks for it; it is the largest part, and labels are most often enough.
    """

    def __init__(self, sem_seg: Callable[[], Tensor], **found: Any):
        super().__init__(found)
        self._sem_seg = sem_seg

    def __missing__(self, key: str) -> Tensor:
        if key != "sem_seg":
            raise KeyError(key)
        return self.setdefault(key, self._sem_seg())


class ThreadedROIAlign(ROIAlign):
    """Detectron2's ``ROIAlign`` for inference, on a CPU by as many threads as PyTorch has:
    torchvision's kernel uses one. A box is pooled by itself, so the result is the same."""

    def forward(self, input: Tensor, rois: Tensor) -> Tensor:
        """See Detectron2's: [N, C, h, w] and [R, 5] to [R, C, *output_size]."""
        threads = torch.get_num_threads()
        # Threads do not inherit an autocast.
        alone = input.is_cuda or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
        if alone or min(threads, len(rois)) < 2:
            return super().forward(input, rois)
        pool = super().forward
        with ThreadPoolExecutor(threads) as executor:
            return torch.cat(
                list(executor.map(lambda part: pool(input, part), rois.chunk(threads)))
            )


class PanopticInference(PanopticFPN):
    """
    Detectron2's ``PanopticFPN`` at inference, with the same results: semantic logits are upsampled
    class by class and end in labels, and the merge does not wait for each instance.

    Attributes:
        gives_confidence: whether outputs have "confidence"; set by who wants it.
    """

    gives_confidence = False

    @classmethod
    def convert(cls, model: PanopticFPN) -> None:
        """Turn a model into one of this class, in place."""
        model.__class__ = cls
        for module in model.roi_heads.modules():
            if type(module) is ROIAlign:
                module.__class__ = ThreadedROIAlign

    def inference(
        self, batched_inputs: list[dict], do_postprocess: bool = True
    ) -> list[PanopticOutput] | tuple[list, Tensor]:
        """See Detectron2's; the outputs are :class:`PanopticOutput`."""
        if not do_postprocess:
            return super().inference(batched_inputs, do_postprocess=False)
        images = self.preprocess_image(batched_inputs)
        features = self.backbone(images.tensor)
        head = self.sem_seg_head
        logits = head.layers(features)
        if isinstance(head, RefinedHead):
            logits = logits[1]
        proposals, _ = self.proposal_generator(images, features, None)
        # What pools boxes wants channel after channel, and would copy for boxes and for masks.
        features = {name: feature.contiguous() for name, feature in features.items()}
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
    ) -> PanopticOutput:
        instances = detector_postprocess(found, *size)
        if self.gives_confidence:
            scores = resized_classes(logits, size, image_size, covered)
            labels, confidence = (part[0] for part in confident_argmax(scores))
            more = {"confidence": confidence}
        else:
            labels, more = upsample_argmax(logits, size, image_size, covered)[0], {}
        merged = merge_panoptic(
            instances,
            labels,
            self.combine_overlap_thresh,
            self.combine_stuff_area_thresh,
            self.combine_instances_score_thresh,
        )
        return PanopticOutput(
            lambda: sem_seg_postprocess(resize(logits, covered)[0], image_size, *size),
            labels=labels,
            instances=instances,
            panoptic_seg=merged,
            **more,
        )
