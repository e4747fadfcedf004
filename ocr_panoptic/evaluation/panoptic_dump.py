"""Panoptic predictions on disk, in COCO's results format."""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from detectron2.data import Metadata, MetadataCatalog
from detectron2.evaluation import DatasetEvaluator
from detectron2.utils import comm

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png
from ocr_panoptic.formats.files import replacing

logger = logging.getLogger(__name__)

NAME = "panoptic_predictions"


class DatasetCategories:
    """The data set's category ids of the model's classes.

    Args:
        metadata: with ``{thing,stuff}_dataset_id_to_contiguous_id``.
    """

    def __init__(self, metadata: Metadata):
        self._ids = {
            True: {v: k for k, v in metadata.thing_dataset_id_to_contiguous_id.items()},
            False: {v: k for k, v in metadata.stuff_dataset_id_to_contiguous_id.items()},
        }

    def of_data_set(self, segment: dict) -> dict:
        """A segment whose contiguous category id is mapped back to the data set's.

        Raises:
            ValueError: the model has other classes.
        """
        category_id = segment["category_id"]
        if segment.get("isthing") is not None:
            isthing = bool(segment["isthing"])
            known = self._ids[isthing]
            if category_id not in known:
                raise UserError(
                    f"predicted segment {segment['id']} has category_id {category_id}, expected "
                    f"one of the {len(known)} contiguous ids of {'things' if isthing else 'stuff'}"
                )
            category_id = known[category_id]
        return {"id": int(segment["id"]), "category_id": int(category_id)}


class PanopticDump:
    """Writes ``panoptic_predictions/*.png`` and ``panoptic_predictions.json`` into a folder.

    panopticapi reads them:

        python -m panopticapi.evaluation --gt_json_file panoptic_val2017.json \\
            --gt_folder panoptic_val2017 --pred_json_file FOLDER/panoptic_predictions.json

    Every process writes the PNGs of its images and one line of JSON for each into a part of its
    own; the main process joins the parts. Processes on several machines must share the folder.
    """

    def __init__(self, folder: str | os.PathLike):
        self._folder = Path(folder)
        self._json = self._folder / f"{NAME}.json"

    def reset(self) -> None:
        """Begin anew: forget this process's part."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._part(comm.get_rank()).write_text("")

    def add_image(
        self, image_id, file_name: str, ids: np.ndarray, segments: Sequence[dict]
    ) -> None:
        """Write one image.

        Args:
            image_id: as in the panoptic JSON of the truth.
            file_name: relative name of the PNG, that of the truth.
            ids: integers [H, W] in 0..2**24 - 1.
            segments: mappings with "id" and "category_id" (the data set's). Those that no pixel
                shows are left out: panopticapi refuses them.
        """
        write_panoptic_png(self._folder / NAME / file_name, ids)
        shown = set(np.unique(ids).tolist())
        annotation = {
            "image_id": image_id,
            "file_name": file_name,
            "segments_info": [segment for segment in segments if segment["id"] in shown],
        }
        with open(self._part(comm.get_rank()), "a") as part:
            part.write(json.dumps(annotation) + "\n")

    def merge(self) -> None:
        """Join the parts of all processes; every process must call it."""
        comm.synchronize()
        if comm.is_main_process():
            parts = [self._part(rank) for rank in range(comm.get_world_size())]
            missing = [str(part) for part in parts if not part.exists()]
            if missing:
                raise MissingFileError(
                    f"{', '.join(missing)} not found: all processes must write their predictions "
                    "into one shared folder."
                )
            with replacing(self._json) as temporary, open(temporary, "w") as merged:
                merged.write('{"annotations": [')
                separator = "\n"
                for part in parts:
                    with open(part) as lines:
                        for line in lines:
                            merged.write(separator + line.rstrip("\n"))
                            separator = ",\n"
                merged.write("\n]}\n")
            for part in parts:
                part.unlink()
        comm.synchronize()

    def _part(self, rank: int) -> Path:
        return self._folder / f"{NAME}.rank{rank}.jsonl"


class PanopticPredictions(DatasetEvaluator):
    """:class:`PanopticDump` of a data set without truth: its categories' ids, its images' ids, and
    PNGs named by the stem of the image's file.

    Args:
        dataset_name: a registered panoptic data set.
        folder: as of :class:`PanopticDump`.
    """

    def __init__(self, dataset_name: str, folder: str | os.PathLike):
        self._folder = Path(folder)
        self._categories = DatasetCategories(MetadataCatalog.get(dataset_name))
        self._dump = PanopticDump(folder)

    def reset(self) -> None:
        self._dump.reset()

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """Write a batch; arguments as those of :class:`PanopticEvaluator`."""
        for input_, output in zip(inputs, outputs, strict=True):
            ids, segments = output["panoptic_seg"]
            segments = list(map(self._categories.of_data_set, segments))
            png = f"{Path(input_['file_name']).stem}.png"
            self._dump.add_image(input_["image_id"], png, ids.cpu().numpy(), segments)

    def evaluate(self) -> None:
        self._dump.merge()
        logger.info("Panoptic predictions are in %s", self._folder / NAME)
