"""The output of a model for an image. Shape letters: K classes, H, W size of the result."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .inference import ClassMaps, check_decided, confident_argmax, running_argmax


class InferenceOutput(Mapping[str, Any]):
    """
    The parts of a result by name, as Detectron2's evaluators ask for them; each is computed when it
    is first asked for.

    - "labels": int64 [H, W];
    - "confidence": the probability of each pixel's label, float32 [H, W];
    - "sem_seg": the scores of all classes, float32 [K, H, W], the largest part; not of a semantic
      model that sees an image several times, which keeps no scores;
    - "instances" and "panoptic_seg", of a panoptic model: see Detectron2's ``PanopticFPN``.

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
        return key in self._parts  # that of Mapping would compute the part

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def keep(self, **parts: Any) -> None:
        """Take the values of parts that were computed together with another."""
        self._parts.update(parts)


def semantic_parts(classes: ClassMaps) -> dict[str, Callable[[InferenceOutput], Tensor]]:
    """Return "labels", "confidence" and "sem_seg" of the scores of one image. Confidence gives the
    labels too: who needs both asks for it first, and the classes are passed through once."""

    def confidence(output: InferenceOutput) -> Tensor:
        labels, found = confident_argmax(classes())
        check_decided(found)
        output.keep(labels=labels[0])
        return found[0]

    return {
        "labels": lambda output: running_argmax(classes())[0],
        "confidence": confidence,
        "sem_seg": lambda output: torch.cat([*classes()], dim=1)[0],
    }
