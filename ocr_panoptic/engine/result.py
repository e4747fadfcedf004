"""The result of a prediction for one image, for people who write Python."""

import io
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from detectron2.structures import Instances
from PIL import Image
from pycocotools import mask as run_lengths

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import write_json
from ocr_panoptic.formats.pictures import reordered

from .inputs import Item
from .outputs import RUN, Writer, panoptic_entries
from .predictor import Prediction

NOTEBOOK = 1024  # pixels of the longer side of a picture there


class Result:
    """
    The prediction for an image of H x W pixels, K semantic classes, M instances.

    Attributes:
        name: of its files, without suffix; of an image from a folder its path below it.
        image: what the model has seen: RGB uint8 [H,W,3], or [H,W,C] as the data are.
        labels: semantic classes 0..K-1, int64 [H,W]; 0 is "things" for a panoptic model.
        confidence: probability of what a pixel is assigned to, float32 [H,W] in 0..1: of its label,
            or the score of its instance; 0 where the panoptic map is void.
        ids: panoptic ids, int32 [H,W], 0 is void; None for a semantic model.
        instances: Detectron2's, on the CPU, all that the detector found: ``pred_boxes`` float32
            [M,4] as x0, y0, x1, y1, ``scores`` float32 [M], ``pred_classes`` int64 [M] and
            ``pred_masks`` bool [M,H,W]; None for a semantic model, and where a panoptic one has
            seen the image in tiles: :meth:`to_coco` has them then.
        classes: names of the K semantic classes.
        things: names of the classes of the instances.
    """

    def __init__(self, item: Item, image: np.ndarray, prediction: Prediction, writer: Writer):
        self.name = item.name
        self._item, self._image, self._prediction, self._writer = item, image, prediction, writer
        self.labels: np.ndarray = prediction.labels
        self.confidence: np.ndarray = prediction.confidence
        self.ids: np.ndarray | None = prediction.ids
        found = prediction.instances
        self.instances: Instances | None = found if isinstance(found, Instances) else None
        self.classes: list[str] = list(writer.classes.names)
        self.things: list[str] = writer.classes.thing_names

    def __repr__(self) -> str:
        height, width = self.labels.shape
        names = ", ".join(dict.fromkeys(segment["name"] for segment in self.segments))
        return f"<Result {self.name}: {width}x{height}, {len(self.segments)} segments: {names}>"

    @property
    def image(self) -> np.ndarray:
        return reordered(self._image, self._writer.image_format)

    @cached_property
    def segments(self) -> list[dict[str, Any]]:
        """
        The segments of the image, a dict each, with "name" and "area" (pixels) and
        "confidence" (the mean over them); of a panoptic model besides "id" (in ``ids``), "isthing",
        "category_id" (the data set's), "bbox" (x, y, width, height) and, of things, "score"; of a
        semantic one, whose segments are its classes, "label".
        """
        known = {
            category["id"]: {"name": category["name"], "isthing": bool(category["isthing"])}
            for category in self._writer.classes.categories
        }
        return [{**known.get(s.get("category_id"), {}), **s} for s in self._content["segments"]]

    @cached_property
    def _content(self) -> dict[str, Any]:
        return self._writer.content(self._prediction)

    def draw(self) -> Image.Image:
        """The segments in their colours over the image in grey, RGB of W x H pixels."""
        return Image.fromarray(self._writer.draw(self._image, self._prediction))

    def _repr_png_(self) -> bytes:
        picture, buffer = self.draw(), io.BytesIO()
        picture.thumbnail((NOTEBOOK, NOTEBOOK))
        picture.save(buffer, format="PNG")
        return buffer.getvalue()

    def to_coco(self, image_id: int = 1) -> dict[str, Any]:
        """
        The prediction as COCO's formats have it.

        Args:
            image_id: the number of the image.

        Returns:
            "images", "annotations" and "categories": of a panoptic model those of COCO panoptic
            format, and "instances" in COCO's results format; of a semantic one an annotation with
            run lengths for each class, as COCO-Stuff has them (category ids are labels).
        """
        height, width = self.labels.shape
        record = self._writer.record(self._item, height, width, self._content)
        classes = self._writer.classes
        if classes.categories:
            image, annotation, instances = panoptic_entries(image_id, self._item, record)
            annotations, more = [annotation], {"instances": instances}
            categories = classes.categories
        else:
            image = {"id": image_id, "file_name": self._item.file_name}
            image |= {"height": height, "width": width}
            annotations, more = self._stuff(image_id), {}
            categories = [
                {"id": k, "name": name, "supercategory": "stuff"}
                for k, name in enumerate(classes.names)
            ]
        return {
            "images": [image],
            "annotations": annotations,
            "categories": categories,
            **more,
        }

    def _stuff(self, image_id: int) -> list[dict[str, Any]]:
        annotations = []
        for number, segment in enumerate(self._content["segments"], 1):
            mask = run_lengths.encode(np.asfortranarray(self.labels == segment["label"], np.uint8))
            annotations.append(
                {
                    "id": number,
                    "image_id": image_id,
                    "category_id": segment["label"],
                    "segmentation": {**mask, "counts": mask["counts"].decode()},
                    "area": segment["area"],
                    "bbox": run_lengths.toBbox(mask).tolist(),
                    "iscrowd": 0,
                    "confidence": segment["confidence"],
                }
            )
        return annotations

    def save(self, folder: str | PathLike) -> dict[str, Path]:
        """
        Write the files that ``ocr-panoptic predict --overlays`` writes for an image, equal to the
        byte, and :meth:`to_coco` as ``coco/NAME.json``. Each is whole or absent.

        Args:
            folder: made where needed; results of other images may be there.

        Returns:
            kind ("labels", "confidence", "panoptic", "overlays", "coco") -> file

        Raises:
            OSError: a file cannot be written.
            ValueError: the folder is that of ``ocr-panoptic predict``, whose records would not have
                this image.
        """
        folder = Path(folder)
        if (folder / RUN).exists():
            raise UserError(
                f"{folder}: holds results of `ocr-panoptic predict` (its {RUN} is there), whose "
                "JSON files would not have this image. Give another folder."
            )
        writer = self._writer.of(folder)
        writer.write(self._item, self._image, self._prediction)
        path = folder / "coco" / f"{self.name}.json"
        write_json(path, self.to_coco())
        return {**writer.paths(self._item), "coco": path}
