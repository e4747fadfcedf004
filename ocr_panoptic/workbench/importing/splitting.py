"""Images for training and for validation, when nobody has told them apart."""

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import digest

from .annotated_image import AnnotatedImage

_FOLDER = "folder"


def split_images(
    images: Sequence[AnnotatedImage], share: float, seed: int = 0, group_by: str | None = None
) -> dict[str, list[AnnotatedImage]]:
    """
    Divide images into ``train`` and ``val``; equal arguments give equal parts, in whatever order
    the images come.

    Args:
        share: of the images that is for training; groups stay together, so that it is met as
            nearly as they allow.
        group_by: "folder": the images of a folder are a group; else a regular expression, whose
            first parenthesised group (or all that matches) in an image's name is the key of its
            group. None: each image is a group.

    Raises:
        ValueError: a share outside of 0..1, no such expression, a name that it does not match, or
            a part that would be empty.
    """
    if not 0 < share < 1:
        raise UserError(f"--split is {share}: the share for training lies between 0 and 1.")
    key_of = _key_function(group_by)
    groups: dict[str, list[AnnotatedImage]] = {}
    for image in sorted(images, key=lambda image: image.name):
        groups.setdefault(key_of(image.name), []).append(image)
    if len(groups) < 2:
        raise UserError(
            f"--split {share}: the {len(images)} images are in one group, which stays together: "
            "give another --group-by, more images, or --val."
        )
    wanted, counted = share * len(images), 0
    train: set[str] = set()
    # In the order of hashes, which is as good as shuffled, and no library's to change.
    order = sorted(groups, key=lambda key: digest([seed, key]))
    for key in order[:-1]:
        after = counted + len(groups[key])
        if train and abs(after - wanted) > abs(counted - wanted):
            break
        train.add(key)
        counted = after
    parts: dict[str, list[AnnotatedImage]] = {"train": [], "val": []}
    for key, group in groups.items():
        parts["train" if key in train else "val"] += group
    return parts


def _key_function(group_by: str | None) -> Callable[[str], str]:
    if group_by is None:
        return str
    if group_by == _FOLDER:
        return lambda name: str(PurePosixPath(name).parent)
    try:
        expression = re.compile(group_by)
    except re.error as error:
        raise UserError(f"--group-by {group_by}: is no regular expression ({error}).") from error

    def key(name: str) -> str:
        found = expression.search(name)
        if found is None:
            raise UserError(f"--group-by {group_by}: does not match the image {name}.")
        return found[1 if expression.groups else 0] or ""

    return key
