"""Whether an image and its labels have the size that the record says."""

import numpy as np
from detectron2.data.detection_utils import SizeMismatchError
from detectron2.data.detection_utils import check_image_size as check


def check_image_size(record: dict, image: np.ndarray) -> None:
    """Detectron2's check; where the record has no height and width it gets them.

    Args:
        image: [H, W, C].

    Raises:
        ValueError: the image has another size.
    """
    try:
        check(record, image)
    except SizeMismatchError as error:
        raise ValueError(
            f"{record['file_name']}: the image has {image.shape[1]}x{image.shape[0]} pixels, "
            f"expected {record['width']}x{record['height']} (width x height). Has it "
            "changed since the data were checked?"
        ) from error


def check_label_size(size: tuple[int, int], record: dict, path: str | None = None) -> None:
    """
    Args:
        size: H, W of the labels of a PNG.
        path: of that PNG; by default the record names it.

    Raises:
        ValueError: the record's image has another size.
    """
    if size != (record["height"], record["width"]):
        path = path or record.get("sem_seg_file_name") or record["pan_seg_file_name"]
        raise ValueError(
            f"{path}: the PNG has {size[1]}x{size[0]} pixels, the image {record['file_name']} "
            f"{record['width']}x{record['height']} (width x height). They must be equal."
        )
