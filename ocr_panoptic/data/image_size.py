"""Whether an image has the size that its record says."""

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
