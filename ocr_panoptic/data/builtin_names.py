"""Refuses names of data sets that Detectron2 has, before a training would."""

import re
from collections.abc import Iterable
from pathlib import Path

from ocr_panoptic.errors import UserError

# Detectron2's own names begin so; the names themselves are known only after seconds of imports.
_LIKELY = re.compile("(keypoints_)?coco_|lvis_|cityscapes_|voc_|ade20k_")


def check_not_builtin(origin: Path, data_sets: Iterable[str]) -> None:
    """Raise UserError if Detectron2 or other code has registered a data set of the same name."""
    likely = [name for name in data_sets if _LIKELY.match(name)]
    if not likely:
        return
    from .register import foreign_names

    for name in likely:
        if name in foreign_names():
            raise UserError(
                f"{origin}: the name {name} belongs to a data set that is registered already, such "
                "as Detectron2's own. Give the data another name."
            )
