"""Copies classifier rows by class name from weights into a model with different classes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from detectron2.data.datasets.builtin_meta import _get_builtin_metadata
from torch import Tensor

# "thing_classes" or "stuff_classes" -> names in the order of the labels
ClassNames = Mapping[str, Sequence[str]]
# Classifier -> (kind of its classes, number of rows for each class, number of rows after them).
CLASSIFIERS = {
    "roi_heads.box_predictor.cls_score": ("thing_classes", 1, 1),  # background
    "roi_heads.box_predictor.bbox_pred": ("thing_classes", 4, 0),
    "roi_heads.mask_head.predictor": ("thing_classes", 1, 0),
    "sem_seg_head.predictor": ("stuff_classes", 1, 0),
    "sem_seg_head.coarse_predictor": ("stuff_classes", 1, 0),
    "sem_seg_head.regions": ("stuff_classes", 1, 0),
    "sem_seg_head.refined_predictor": ("stuff_classes", 1, 0),
}


class Rows(NamedTuple):
    """Weights with rearranged classifier rows, and the names of matched and unmatched classes."""

    weights: Mapping[str, Any]
    kept: list[str]  # classes whose rows come from the loaded weights; empty if all classes agree
    new: list[str]  # classes that keep the model's rows; empty if all classes agree


def rows_by_name(
    weights: Mapping[str, Any], own: Mapping[str, Tensor], theirs: ClassNames, ours: ClassNames
) -> Rows:
    """
    Rearrange the classifier rows of weights for the model's classes, matched by class name.

    A class that the weights lack keeps the model's rows. If no name is equal, matching ignores
    upper and lower case, and takes each name of a class like ADE20K's "road, route".

    Args:
        weights: tensors or arrays of the file, keyed by tensor name.
        own: tensors of the model before loading, keyed by tensor name.
        theirs, ours: class names of the weights and of the model.
    """
    places: dict[str, list[int | None]] = {}
    for kind in {"thing_classes", "stuff_classes"} & ours.keys():
        exact = {name: place for place, name in enumerate(theirs.get(kind, ()))}
        parts = {part: place for name, place in exact.items() for part in name.split(", ")}
        known = {name.casefold(): place for name, place in [*parts.items(), *exact.items()]}
        places[kind] = [exact.get(n, known.get(n.casefold())) for n in ours[kind]]
    rearranged, kinds = {}, set()
    for name, value in own.items():
        kind, each, after = CLASSIFIERS.get(name.rpartition(".")[0], ("", 0, 0))
        if name not in weights or kind not in places or [*theirs.get(kind, ())] == [*ours[kind]]:
            continue
        found = torch.as_tensor(weights[name])
        wanted = (len(theirs.get(kind, ())) * each + after, *value.shape[1:])
        if len(value) != len(ours[kind]) * each + after or tuple(found.shape) != wanted:
            continue  # a classifier without rows for each class
        rows = value.detach().cpu().clone()
        for place, before in enumerate(places[kind]):
            if before is not None:
                rows[place * each : (place + 1) * each] = found[before * each : (before + 1) * each]
        if after:
            rows[-after:] = found[-after:]
        rearranged[name] = rows
        kinds.add(kind)
    named = [
        (name, place is not None)
        for kind in sorted(kinds, reverse=True)
        for name, place in zip(ours[kind], places[kind], strict=True)
        if name != "things"
    ]
    kept, new = ([name for name, known in named if known is wanted] for wanted in (True, False))
    return Rows({**weights, **rearranged}, kept, new)


_FOLDER = "COCO-PanopticSegmentation"
# Config of a Panoptic-FPN of Detectron2's model zoo -> address of its weights.
# detectron2.model_zoo also has these addresses, but its import is slow and warns about setuptools.
ZOO_WEIGHTS = {
    f"{_FOLDER}/panoptic_fpn_{name}": f"detectron2://{_FOLDER}/panoptic_fpn_{name}/{file}"
    for name, file in {
        "R_50_1x": "139514544/model_final_dbfeb4.pkl",
        "R_50_3x": "139514569/model_final_c10459.pkl",
        "R_101_3x": "139514519/model_final_cafdb1.pkl",
    }.items()
}


def zoo_classes(weights: str) -> Mapping[str, list[str]] | None:
    """
    Return the class names of a Panoptic-FPN of Detectron2's model zoo; None for other weights.

    The weights are recognised by the file name at the end of ``weights``, a path or address.
    """
    if Path(weights).name not in {Path(address).name for address in ZOO_WEIGHTS.values()}:
        return None
    metadata = _get_builtin_metadata("coco_panoptic_separated")
    return {kind: metadata[kind] for kind in ("thing_classes", "stuff_classes")}
