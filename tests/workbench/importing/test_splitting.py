"""Divided images: the same again, frames of one video together, the share as near as can be."""

import pytest

from ocr_panoptic.workbench.importing.annotated_image import AnnotatedImage
from ocr_panoptic.workbench.importing.splitting import split_images

FRAMES = [
    AnnotatedImage(None, f"{folder}/{video}_{frame:03}.jpg", 4, 4)
    for folder in ("east", "west")
    for video in "abcde"
    for frame in range(3 if folder == "east" else 5)
]  # 15 and 25


def names(images) -> list[str]:
    return [image.name for image in images]


def test_each_image_by_itself():
    found = split_images(FRAMES, 0.8)
    assert {split: len(images) for split, images in found.items()} == {"train": 32, "val": 8}
    assert sorted(names(found["train"]) + names(found["val"])) == sorted(names(FRAMES))
    again = split_images(FRAMES[::-1], 0.8)
    assert names(again["val"]) == names(found["val"]) == sorted(names(found["val"]))
    assert names(split_images(FRAMES, 0.8, seed=1)["val"]) != names(found["val"])


def test_it_stays_what_it_is():
    """Other images of the users' would change sides with another rule."""
    assert names(split_images(FRAMES, 0.9)["val"]) == [
        *("east/d_002.jpg", "west/a_002.jpg", "west/e_003.jpg", "west/e_004.jpg")
    ]


@pytest.mark.parametrize(
    "group_by, key",
    [
        ("folder", lambda name: name.split("/")[0]),
        (r"^(\w+)/", lambda name: name.split("/")[0]),
        (r"/(.)_\d+", lambda name: name.split("/")[1][0]),
        ("^.*_", lambda name: name[:-7]),
    ],
)
def test_groups_stay_together(group_by, key):
    found = split_images(FRAMES, 0.6, group_by=group_by)
    train, val = ({key(name) for name in names(found[split])} for split in ("train", "val"))
    assert train and val and not train & val
    assert abs(len(found["train"]) - 24) <= 9  # half of the largest group and the last one


@pytest.mark.parametrize("share, nearest", [(0.45, 12), (0.55, 18)])
def test_the_share_is_met_as_nearly_as_groups_allow(share, nearest):
    groups = [AnnotatedImage(None, f"{n // 6}/{n % 6}.jpg", 4, 4) for n in range(30)]
    assert len(split_images(groups, share, group_by="folder")["train"]) == nearest


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_no_part_is_empty(share):
    assert all(split_images(FRAMES[:2], share).values())


@pytest.mark.parametrize(
    "share, group_by, message",
    [
        (0, None, "--split is 0: the share for training lies between"),
        (1.5, None, "--split is 1.5"),
        (float("nan"), None, "--split is nan"),
        (0.5, "(", "is no regular expression"),
        (0.5, "x(.)", "--group-by x.*: does not match the image east/a_000.jpg"),
        (0.5, "jpg", "the 40 images are in one group"),
    ],
)
def test_faults(share, group_by, message):
    with pytest.raises(ValueError, match=message):
        split_images(FRAMES, share, group_by=group_by)
