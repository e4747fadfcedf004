"""Sources of the offsets of an image: its truth, files, or a trained SegFix.

An image is known by its *name*: the path of a file below its folder without suffix, or the last
part of that alone where no two have the same.
"""

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.data.published.register import register_published
from ocr_panoptic.data.register import register_in_use, registered_metadata
from ocr_panoptic.engine.single_image import model_input
from ocr_panoptic.engine.trained_model import build_trained_model
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.labels import has_labels
from ocr_panoptic.formats.offsets import offsets_of, parts_of, read_offsets
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.segfix.truth import read_segment_map, true_offset_labels

Entry = TypeVar("Entry")


class Offsets(Protocol):
    """
    Attributes:
        names: of the images that it has offsets of.
        name_of_id: their names by the ids of a JSON, as far as it knows them.
    """

    names: "Named"
    name_of_id: Mapping[Any, str]

    def __call__(self, name: str) -> np.ndarray:
        """
        Returns:
            int8 [H, W, 2], (down, right)
        """


class Named(Generic[Entry]):
    """
    Args:
        entries: by their names.
        what: they are, for messages.
    """

    def __init__(self, entries: Mapping[str, Entry], what: str):
        self._what = what
        self._entries = dict(entries)
        self._by_last: dict[str, list[str]] = {}
        for name in self._entries:
            self._by_last.setdefault(PurePath(name).name, []).append(name)

    def __getitem__(self, name: str) -> Entry:
        if name in self._entries:
            return self._entries[name]
        (own,) = self._by_last[PurePath(name).name]
        return self._entries[own]

    def __contains__(self, name: str) -> bool:
        return name in self._entries or len(self._by_last.get(PurePath(name).name, ())) == 1

    def check(self, names: list[str]) -> None:
        """
        Raises:
            ValueError: some are not there.
        """
        missing = [name for name in names if name not in self]
        if missing:
            raise UserError(
                f"{len(missing)} of {len(names)} predictions have no {self._what} of their name, "
                f"or several: {first_few(missing)}. There are {len(self._entries)}: "
                f"{first_few(sorted(self._entries)) or 'none'}."
            )


class TrueOffsets:
    """
    The truth's: the upper bound of what any network can do.

    Args:
        dataset_name: registered, semantic or panoptic.
        boundary_distance: see :func:`.true_offset_labels`.

    Raises:
        ValueError: there is no such data set, or it has no labels.
    """

    def __init__(self, dataset_name: str, boundary_distance: int):
        if dataset_name not in DatasetCatalog:
            register_published([dataset_name])
            register_in_use((), [dataset_name])
        registered_metadata(dataset_name)
        records = list(filter(has_labels, DatasetCatalog.get(dataset_name)))
        if not records:
            raise UserError(f"--oracle {dataset_name}: the data set has no labels")
        self._distance = boundary_distance
        self._label_map = MetadataCatalog.get(dataset_name).get("label_map")
        self.names = Named({_name(r): r for r in records}, f"image in {dataset_name}")
        self.name_of_id = {r["image_id"]: _name(r) for r in records if "image_id" in r}

    def __call__(self, name: str) -> np.ndarray:
        segments = read_segment_map(self.names[name], self._label_map)
        near_boundary, direction = parts_of(true_offset_labels(segments, self._distance))
        return offsets_of(near_boundary == 1, direction)


class StoredOffsets:
    """
    Args:
        folder: of offset files, see :func:`.read_offsets`.

    Raises:
        FileNotFoundError: there is no such folder, or none in it.
    """

    name_of_id: Mapping[Any, str] = {}

    def __init__(self, folder: Path):
        files = {file.relative_to(folder).with_suffix("").as_posix(): file
                 for file in sorted(folder.rglob("*.mat"))}  # fmt: skip
        if not files:
            raise MissingFileError(f"--offsets {folder}: no folder with .mat files")
        self.names = Named(files, "offset file")

    def __call__(self, name: str) -> np.ndarray:
        return read_offsets(self.names[name])


class PredictedOffsets:
    """
    Args:
        cfg: of a SegFix, see :func:`.load_segfix_config`; MODEL.WEIGHTS are the trained ones.
        images: files by their names.

    Raises:
        FileNotFoundError, ValueError: as :func:`.build_trained_model`.
    """

    name_of_id: Mapping[Any, str] = {}

    def __init__(self, cfg: CfgNode, images: Mapping[str, Path]):
        self.names = Named(images, "image")
        self._cfg, self._model = cfg, build_trained_model(cfg)

    def __call__(self, name: str) -> np.ndarray:
        inputs = self._cfg.INPUT
        image = read_picture(self.names[name], inputs.FORMAT, inputs.CHANNELS)
        with torch.inference_mode():
            (found,) = self._model([model_input(self._cfg, image)])
        return offsets_of(found["near_boundary"].cpu().numpy(), found["direction"].cpu().numpy())


def _name(record: Mapping[str, Any]) -> str:
    return PurePath(record["file_name"]).with_suffix("").as_posix()
