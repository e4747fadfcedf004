"""The Panoptic-FPNs of Detectron2's model zoo, which were trained on COCO."""

from collections.abc import Mapping
from pathlib import Path

from detectron2.data.datasets.builtin_meta import _get_builtin_metadata

_FOLDER = "COCO-PanopticSegmentation"
# Config -> address of its weights. ``detectron2.model_zoo`` has them, too, but its import is slow
# and warns about setuptools.
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
    Return "thing_classes" and "stuff_classes" of weights of the zoo; None for other weights.

    They are recognised by the name of the file, in any folder.
    """
    if Path(weights).name not in {Path(address).name for address in ZOO_WEIGHTS.values()}:
        return None
    metadata = _get_builtin_metadata("coco_panoptic_separated")
    return {kind: metadata[kind] for kind in ("thing_classes", "stuff_classes")}
