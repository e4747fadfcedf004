"""Panoptic predictions on disk, in COCO's results format."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from detectron2.utils import comm

from ocr_panoptic.coco_panoptic import write_panoptic_png
from ocr_panoptic.files import replacing

NAME = "panoptic_predictions"


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
                raise FileNotFoundError(
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
