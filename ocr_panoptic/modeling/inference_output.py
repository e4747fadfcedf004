"""The output of a model for one image. Shape letters: K classes; H, W size of the result."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .inference import ClassMaps, check_decided, confident_argmax, running_argmax


class InferenceOutput(Mapping[str, Any]):
    """
    A mapping from names to the parts of a model's result; a part is computed when first read.

    - "labels": the label of each pixel, int64 [H, W];
    - "confidence": the probability of each pixel's label, float32 [H, W];
    - "sem_seg": the scores of all classes, float32 [K, H, W]; missing if a semantic model sees the
      image several times (scales, flips or windows);
    - "instances" and "panoptic_seg" of a panoptic model: see Detectron2's ``PanopticFPN``.

    Args:
        parts: for each name, the part, or a function that computes the part from this output.
    """

    def __init__(self, parts: Mapping[str, Any]):
        self._parts = dict(parts)

    @torch.no_grad()
    def __getitem__(self, key: str) -> Any:
        part = self._parts[key]
        if callable(part):
            part = self._parts[key] = part(self)
        return part

    def __contains__(self, key: object) -> bool:
        return key in self._parts  # Mapping's own method would compute the part

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def store(self, **parts: Any) -> None:
        """Store parts that are already computed, such as "labels" found along with "confidence"."""
        self._parts.update(parts)


def semantic_parts(classes: ClassMaps) -> dict[str, Callable[[InferenceOutput], Tensor]]:
    """
    Return functions that compute "labels", "confidence" and "sem_seg" from an image's scores.

    The function for "confidence" also stores the "labels", which saves a second pass over the
    scores.
    """

    def confidence(output: InferenceOutput) -> Tensor:
        labels, found = confident_argmax(classes())
        check_decided(found)
        output.store(labels=labels[0])
        return found[0]

    return {
        "labels": lambda output: running_argmax(classes())[0],
        "confidence": confidence,
        "sem_seg": lambda output: torch.cat([*classes()], dim=1)[0],
    }
