"""AP of boxes and masks, by a library that does not keep the other processes waiting."""

import contextlib
import io
import logging
from collections.abc import Mapping
from pathlib import Path

import hotcoco
import torch
from detectron2.data import Metadata, MetadataCatalog
from detectron2.evaluation import COCOEvaluator, coco_evaluation
from detectron2.utils import comm

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import PanopticTruth
from ocr_panoptic.formats.segment_runs import SegmentRuns

# What Detectron2 calls with use_fast_impl. Its own is compiled, and close to pycocotools; this one
# comes as a wheel, and equals pycocotools to the last digit.
coco_evaluation.COCOeval_opt = hotcoco.COCOeval


logger = logging.getLogger(__name__)


class InstanceEvaluator(COCOEvaluator):
    """
    Detectron2's ``COCOEvaluator`` with the AP of ``hotcoco``: the main process computes it alone,
    while the others wait, and pycocotools takes minutes where there are many instances.

    Where the data set has instances of its own, a ``json_file`` in COCO's format, these are the
    truth, else the things of its panoptic PNGs, of the images that are evaluated.

    Args:
        dataset_name: a registered data set.
        tasks: "bbox", or that and "segm".
        output_dir: folder of the predictions; None for none.
    """

    def __init__(self, dataset_name: str, tasks: tuple[str, ...], output_dir: str | None = None):
        metadata = MetadataCatalog.get(dataset_name)
        self._truth = None if metadata.get("json_file") else PanopticInstances(metadata)
        if self._truth is None:
            super().__init__(dataset_name, tasks=tasks, output_dir=output_dir, use_fast_impl=True)
            dataset = self._coco_api.dataset
            if all(isinstance(image["id"], int) for image in dataset["images"]):
                self._coco_api = hotcoco.COCO(metadata.json_file)
            else:
                self._coco_api = numbered_images(dataset)
            return
        # What COCOEvaluator.__init__ sets, without its reading of a JSON.
        self._logger = logger
        self._metadata, self._tasks, self._output_dir = metadata, tasks, output_dir
        self._distributed = self._use_fast_impl = self._do_evaluation = True
        self._max_dets_per_image = [1, 10, 100]
        self._kpt_oks_sigmas = ()
        self._cpu_device = torch.device("cpu")

    def reset(self) -> None:
        super().reset()
        if self._truth is not None:
            self._truth.reset()

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """Take a batch, as Detectron2's does.

        Raises:
            FileNotFoundError, ValueError: the truth is missing or broken.
        """
        super().process(inputs, outputs)
        if self._truth is not None:
            for input_ in inputs:
                self._truth.add(input_["image_id"])

    def add_results(self, image_id: int | str, results: list[dict]) -> None:
        """:meth:`process` for an image whose instances are in COCO's results format already, but
        with the model's classes as "category_id"."""
        results = [{**result, "image_id": image_id} for result in results]
        self._predictions.append({"image_id": image_id, "instances": results})
        if self._truth is not None:
            self._truth.add(image_id)

    def evaluate(self, img_ids: list[int] | None = None) -> dict | None:
        """Return the metrics, as Detectron2's does; what is printed on the way goes to the log."""
        if self._truth is not None:
            self._coco_api = numbered_images(self._truth.gathered())
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            results = super().evaluate(img_ids)
        if printed.getvalue():
            logger.debug("AP on %s:\n%s", self._metadata.name, printed.getvalue())
        if results:
            found = ", ".join(f"{task} AP {results[task]['AP']:.3f}" for task in results)
            logger.info("Instances on %s: %s", self._metadata.name, found)
        return results


class PanopticInstances:
    """The things of panoptic PNGs as instances in COCO's format, gathered image by image.

    Args:
        metadata: of a data set with a panoptic truth, see :class:`.PanopticTruth`.
    """

    def __init__(self, metadata: Metadata):
        self._panoptic = PanopticTruth(metadata)
        self._folder = Path(metadata.panoptic_root)
        self._categories = [c for c in self._panoptic.categories if c["isthing"]]
        self._thing_ids = {category["id"] for category in self._categories}
        self.reset()

    def reset(self) -> None:
        self._images: list[tuple[dict, list[dict]]] = []

    def add(self, image_id: int | str) -> None:
        """Add an image that this process evaluates.

        Raises:
            FileNotFoundError, ValueError: its PNG is missing, broken, or lacks a thing of the JSON.
        """
        truth = self._panoptic[image_id]
        runs = SegmentRuns(truth.ids)
        things = [s for s in truth.segments if s["category_id"] in self._thing_ids]
        if lost := [s["id"] for s in things if s["id"] not in runs.statistics]:
            raise UserError(
                f"{self._folder / truth.png}: segment {lost[0]} of the JSON's segments_info has no "
                "pixel in the PNG. Has it changed since it was checked?"
            )
        annotations = [
            {
                "image_id": image_id,
                "category_id": segment["category_id"],
                "iscrowd": segment["iscrowd"],
                **runs.statistics[segment["id"]]._asdict(),
                "segmentation": runs.run_lengths(segment["id"]),
            }
            for segment in things
        ]
        height, width = truth.ids.shape
        self._images.append(({"id": image_id, "height": height, "width": width}, annotations))

    def gathered(self) -> dict:
        """Return the truth of all processes, in the main one, as a COCO JSON holds it."""
        images = [entry for entries in comm.gather(self._images) for entry in entries]
        annotations = [annotation for _, own in images for annotation in own]
        return {
            "images": [image for image, _ in images],
            # pycocotools takes id 0 for "no match".
            "annotations": [{**a, "id": number} for number, a in enumerate(annotations, 1)],
            "categories": self._categories,
        }


class _NumberedImages(hotcoco.COCO):
    """
    Attributes:
        number_of: an image's own id -> its number.
    """

    number_of: Mapping[int | str, int]

    def loadRes(self, results: list[dict]) -> hotcoco.COCO:  # pycocotools' name
        return super().loadRes(
            [{**result, "image_id": self.number_of[result["image_id"]]} for result in results]
        )


def numbered_images(dataset: dict) -> hotcoco.COCO:
    """An instance JSON with texts for image ids. pycocotools takes them and hotcoco does not, for
    which they are numbered, in pycocotools' order. (Integers among them, which it cannot order,
    come first.)"""
    ids = sorted(
        (image["id"] for image in dataset["images"]), key=lambda i: (isinstance(i, str), i)
    )
    number_of = {own: number for number, own in enumerate(ids, 1)}
    annotations = dataset["annotations"]
    found = _NumberedImages(
        {
            **dataset,
            "images": [{**image, "id": number_of[image["id"]]} for image in dataset["images"]],
            "annotations": [{**a, "image_id": number_of[a["image_id"]]} for a in annotations],
        }
    )
    found.number_of = number_of
    return found
