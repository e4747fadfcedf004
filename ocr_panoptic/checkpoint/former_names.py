"""Names that the heads' parameters had in files of earlier versions."""

from collections.abc import Mapping
from typing import Any

HEAD = "sem_seg_head."


def rename_former(weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    Both heads call their parts alike: ``context`` and ``refined_predictor``. In files of earlier
    versions the scheme of ``OCRSemSegFPNHead`` is ``ocr``, its refined classifier
    ``ocr_predictor``, and that of ``ContextSemSegHead`` is ``predictor``.

    Args:
        weights: tensor of each name in a file.

    Returns:
        the same under the names of this version, in the same order; files of this version, of
        Detectron2's model zoo and of plain Panoptic-FPN as they are
    """
    names = {name.split(".")[1] for name in weights if name.startswith(HEAD)}
    renamed = {"ocr": "context", "ocr_predictor": "refined_predictor"}
    if {"coarse_predictor", "predictor"} <= names and "refined_predictor" not in names:
        renamed["predictor"] = "refined_predictor"
    if not names & renamed.keys():
        return weights
    return {_renamed(name, renamed): tensor for name, tensor in weights.items()}


def _renamed(name: str, parts: Mapping[str, str]) -> str:
    if not name.startswith(HEAD):
        return name
    part, dot, rest = name.removeprefix(HEAD).partition(".")
    return f"{HEAD}{parts.get(part, part)}{dot}{rest}"
