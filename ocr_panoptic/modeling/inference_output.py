"""The output of a model for an image. Shape letters: K classes, H, W size of the result."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .inference import ClassMaps, check_decided, confident_argmax, running_argmax


class InferenceOutput(Mapping[str, Any]):
    """
    The parts of a model's result by name; each is computed when it is first asked for.

    The names are those that Detectron2's evaluators read:

    - "labels": int64 [H, W];
    - "confidence": the probability of each pixel's label, float32 [H, W];
    - "sem_seg": the scores of all classes, float32 [K, H, W], the largest part. A semantic model
      that sees an image several times does not keep scores;
    - "instances" and "panoptic_seg" of a panoptic model: see Detectron2's ``PanopticFPN``.

    Args:
        parts: values, or functions that compute them from this output.
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
        """Store the values of parts that were computed together with another part."""
        self._parts.update(parts)


def semantic_parts(classes: ClassMaps) -> dict[str, Callable[[InferenceOutput], Tensor]]:
    """
    Return functions that compute "labels", "confidence" and "sem_seg" from an image's scores.

    "confidence" also stores the labels. If it is read first, the scores are computed only once.
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
