"""AP of boxes and masks, by a library that does not keep the other processes waiting."""

import contextlib
import io
import logging
from collections.abc import Mapping

import hotcoco
from detectron2.evaluation import COCOEvaluator, coco_evaluation

# What Detectron2 calls with use_fast_impl. Its own is compiled, and close to pycocotools; this one
# comes as a wheel, and equals pycocotools to the last digit.
coco_evaluation.COCOeval_opt = hotcoco.COCOeval


logger = logging.getLogger(__name__)


class InstanceEvaluator(COCOEvaluator):
    """
    Detectron2's ``COCOEvaluator`` with the AP of ``hotcoco``: the main process computes it alone,
    while the others wait, and pycocotools takes minutes where there are many instances.

    Args:
        dataset_name: a registered data set with a ``json_file`` in COCO's format.
        tasks: "bbox", or that and "segm".
        output_dir: folder of the predictions; None for none.
    """

    def __init__(self, dataset_name: str, tasks: tuple[str, ...], output_dir: str | None = None):
        super().__init__(dataset_name, tasks=tasks, output_dir=output_dir, use_fast_impl=True)
        dataset = self._coco_api.dataset
        if all(isinstance(image["id"], int) for image in dataset["images"]):
            self._coco_api = hotcoco.COCO(self._metadata.json_file)
        else:
            self._coco_api = numbered_images(dataset)

    def add_results(self, image_id: int | str, results: list[dict]) -> None:
        """:meth:`process` for an image whose instances are in COCO's results format already, but
        with the model's classes as "category_id"."""
        results = [{**result, "image_id": image_id} for result in results]
        self._predictions.append({"image_id": image_id, "instances": results})

    def evaluate(self, img_ids: list[int] | None = None) -> dict | None:
        """As Detectron2's; what is printed on the way goes to the log."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            results = super().evaluate(img_ids)
        if printed.getvalue():
            logger.debug("AP on %s:\n%s", self._metadata.name, printed.getvalue())
        if results:
            found = ", ".join(f"{task} AP {results[task]['AP']:.3f}" for task in results)
            logger.info("Instances on %s: %s", self._metadata.name, found)
        return results


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
