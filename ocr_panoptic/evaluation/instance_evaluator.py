"""AP of boxes and masks for data sets whose ground truth consists of panoptic PNGs."""

import logging

import torch
from detectron2.data import MetadataCatalog
from detectron2.evaluation import COCOEvaluator
from detectron2.utils import comm
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from ocr_panoptic.formats.coco_panoptic import ids_by_class
from ocr_panoptic.formats.segment_runs import SegmentRuns

from .panoptic_truth import PanopticTruth

logger = logging.getLogger(__name__)


class PanopticInstanceEvaluator(COCOEvaluator):
    """
    Detectron2's ``COCOEvaluator`` for a data set that has panoptic PNGs and no instance JSON.

    The ground truth consists of the things in the PNGs of the evaluated images.

    Args:
        dataset_name: a registered panoptic data set.
        tasks: ("bbox",) for the AP of boxes, ("bbox", "segm") for the AP of boxes and masks.
        output_dir: folder for the predictions; None writes no predictions.
    """

    def __init__(self, dataset_name: str, tasks: tuple[str, ...], output_dir: str | None = None):
        # COCOEvaluator.__init__ would set these attributes, but would also read a JSON.
        self._logger, self._cpu_device = logger, torch.device("cpu")
        self._metadata, self._tasks = MetadataCatalog.get(dataset_name), tasks
        self._output_dir = output_dir
        self._distributed, self._use_fast_impl, self._do_evaluation = True, False, True
        self._max_dets_per_image, self._kpt_oks_sigmas = [1, 10, 100], ()
        self._truth = PanopticTruth(self._metadata)
        self._thing_ids = ids_by_class(self._metadata, "thing")

    def reset(self) -> None:
        super().reset()
        self._images: list[dict] = []
        self._annotations: list[dict] = []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        super().process(inputs, outputs)
        for input_ in inputs:
            self.add_truth(input_["image_id"])

    def add_truth(self, image_id: int | str) -> None:
        truth = self._truth[image_id]
        height, width = truth.ids.shape
        self._images.append({"id": image_id, "height": height, "width": width})
        runs = SegmentRuns(truth.ids)
        for segment in truth.segments:
            if segment["category_id"] in self._thing_ids:
                shape = runs.statistics[segment["id"]]._asdict()
                shape["segmentation"] = runs.run_lengths(segment["id"])
                self._annotations.append({**segment, "image_id": image_id, **shape})

    def evaluate(self, img_ids: list[int] | None = None) -> dict | None:
        self._coco_api = COCO()
        self._coco_api.dataset = self.gather_truth()
        self._coco_api.createIndex()
        return super().evaluate(img_ids)

    def gather_truth(self) -> dict:
        """Gather the ground truth of all processes in the main process, in COCO instance format."""
        gathered = comm.gather((self._images, self._annotations))
        annotations = [annotation for _, part in gathered for annotation in part]
        # A model's classes that the data lack are listed, too: their AP is NaN, and not averaged.
        names = zip(self._thing_ids, self._metadata.thing_classes, strict=True)
        return {
            "images": [image for images, _ in gathered for image in images],
            # pycocotools reads id 0 as "no match".
            "annotations": [{**a, "id": number} for number, a in enumerate(annotations, 1)],
            "categories": [{"id": number, "name": name} for number, name in sorted(names)],
        }

    def _derive_coco_results(
        self, coco_eval: COCOeval, iou_type: str, class_names: list[str] | None = None
    ) -> dict:
        # COCOeval orders categories by id; a model's classes can have another order.
        by_id = dict(zip(self._thing_ids, self._metadata.thing_classes, strict=True))
        return super()._derive_coco_results(coco_eval, iou_type, [by_id[n] for n in sorted(by_id)])
