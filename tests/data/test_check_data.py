"""The check of data: faults, warnings, counted classes; unchanged data are checked only once."""

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from ocr_panoptic.data import data_check
from ocr_panoptic.data.catalog import register_data_sets
from ocr_panoptic.data.data_check import check_data, check_data_sets
from ocr_panoptic.data.data_file import SemanticSplit, write_data_file
from ocr_panoptic.data.faults import DataFaults, faults_listed, first_few
from ocr_panoptic.data.places import cache_folder
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from ocr_panoptic.formats.labels import read_label_image, write_label_png
from support.faults import faults_of
from support.raw_pets import CAT, SKY, RawData

pytestmark = pytest.mark.usefixtures("clean_catalog")


@pytest.fixture
def looked_at(monkeypatch) -> list[int]:
    """Return a list that gets the number of decoded images in each check."""
    numbers, imap = [], data_check.imap_with_progress
    monkeypatch.setattr(
        *(data_check, "imap_with_progress"),
        lambda function, items, *args: numbers.append(len(items)) or imap(function, items, *args),
    )
    return numbers


def semantic(raw, name: str = "sem") -> str:
    """Return a data file of label PNGs, all with class a, instead of the panoptic PNGs."""
    for path in raw.png("").rglob("*.png"):
        write_label_png(path, np.zeros(read_panoptic_png(path).shape, np.uint8))
    file = raw.folder / f"{name}.yaml"
    write_data_file(
        file, name, {"train": SemanticSplit(raw.image(""), raw.png(""))}, classes=["a", "b"]
    )
    return file


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: os.utime(raw.png("first.png"), ns=(1, 1)),
        lambda raw: raw.content["annotations"][0]["segments_info"][0].update(category_id=CAT),
        lambda raw: os.utime(raw.image("first.jpg"), ns=(1, 1)),
    ],
)
def test_only_changed_data_are_checked_again(raw, looked_at, change):
    file = raw.described()
    before = str(check_data([file], workers=1))
    assert str(check_data([file], workers=1)) == before
    check_data_sets(register_data_sets([file]), workers=1)
    assert looked_at == [2]
    change(raw)
    raw.save()
    check_data([file], workers=1)
    check_data([file], workers=1)
    assert len(looked_at) == 2


def test_remembered_results_belong_to_the_data(raw, tmp_path, looked_at):
    """Data with the same name in two folders, or with another label map, are checked again."""
    files = raw.described(), RawData(tmp_path / "other").described()
    for file in files * 2:
        check_data([file], workers=1)
    assert looked_at == [2, 2]
    file = semantic(raw)
    check_data([file], workers=1)
    file.write_text(file.read_text() + "ignore: 9\n")
    check_data([file], workers=1)
    assert looked_at[2:] == [2, 2]


def test_the_faults_of_all_splits(raw, raw_val):
    raw.image("first.jpg").unlink()
    raw_val.png("first.png").unlink()
    assert len(faults_of(raw.checked, val=raw_val)) == 2


def test_the_start_of_a_training_does_not_check_many_images(raw, monkeypatch, looked_at):
    monkeypatch.setattr(data_check, "MANY", 1)
    names = register_data_sets([raw.described()])
    raw.image("first.jpg").unlink()
    check_data_sets(names)
    assert looked_at == []
    for _ in range(2):  # faults are not remembered
        with pytest.raises(DataFaults, match="image 21 not found"):
            check_data([raw.described()], workers=1)
    assert looked_at == [2, 2]


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="is not writable.*Set XDG_CACHE_HOME to a folder"):
        cache_folder()


def test_summary(raw):
    """raw_pets.py has the counts, worked out by hand."""
    (split,) = check_data([raw.described()], workers=1).splits
    assert (split.name, split.images, split.pixels) == ("pets_train", 2, 48 + 20)
    assert [(c.name, c.kind, c.images, c.segments, c.pixels) for c in split.classes] == [
        ("cat", "thing", 2, 2, 4 + 4),
        ("sky", "stuff", 2, 2, 16 + 14),
        ("dog", "thing", 1, 1, 7),
        ("grass", "stuff", 1, 1, 18),
    ]
    assert "sky" in str(split) and "44.12" in str(split)


@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_an_image_that_would_be_scaled_to_nothing(raw, kind):
    for length, name in ((1000, "wide.png"), (2667, "thin.png")):
        segments = [{"id": 9, "category_id": SKY}]
        raw.add(length, name, name, np.full((1, length), 9), segments)
    file = raw.described() if kind == "panoptic" else semantic(raw)
    (fault,) = faults_of(check_data, [file], 1)
    assert fault.startswith(f"{raw.image('thin.png')}: the image has 2667x1 pixels")
    assert "Crop or remove" in fault


def test_labels_that_are_all_ignored(raw):
    file, labels = semantic(raw), sorted(raw.png("").rglob("*.png"))
    for path in labels:
        write_label_png(path, np.full_like(read_label_image(path), 255))
    (fault,) = faults_of(check_data, [file], 1)
    assert fault.startswith(f"{raw.png('')}: all pixels are ignored")
    write_label_png(labels[1], np.ones(read_label_image(labels[1]).shape, np.uint8))
    check_data([file], workers=1)


def test_labels_in_colours_that_no_class_has(tmp_path):
    for k in range(3):
        for folder in ("images", "labels"):
            (tmp_path / folder).mkdir(exist_ok=True)
            colours = [[9 * k, 0, 200], [7, 7, 7]]
            Image.fromarray(np.array([colours], np.uint8)).save(tmp_path / f"{folder}/{k}.png")
    split = SemanticSplit(tmp_path / "images", tmp_path / "labels")
    write_data_file(tmp_path / "sem.yaml", "sem", {"train": split}, classes=["a", "b"])
    (fault,) = faults_of(check_data, tmp_path / "sem.yaml", 1)
    for colour in ("[0, 0, 200]", "[9, 0, 200]", "[18, 0, 200]", "[7, 7, 7]"):
        assert colour in fault


LABELS = np.array([[0, 0, 1, 1], [0, 1, 1, 1]], np.uint8)
RIMMED = LABELS | np.uint8([[0, 255, 0, 0]] * 2)
PHOTO = np.full((2, 4, 3), 200, np.uint8)
TURNED = Image.Exif()
TURNED[274] = 3


@pytest.mark.parametrize(
    ("photos", "labels", "about", "warning"),
    [
        ([PHOTO], [LABELS], {}, ""),
        (
            [PHOTO],
            [LABELS * 255],
            {},
            "sem_train, sem_val: these classes have no pixels: b. A model learns nothing from a "
            "single class. Ignored labels: 255 (62.50% of the pixels). Label 255 is ignored by "
            "default. If it means b, give each class its labels, such as {name: b, labels: 255}.",
        ),
        ([PHOTO], [LABELS], {"classes": ["a", "b", "c"]}, "these classes have no pixels: c."),
        ([PHOTO], [LABELS * 9], {"ignore": 9}, "Ignored labels: 9 (62.50% of the pixels)."),
        ([np.full((2, 4), 4000, np.uint16)], [LABELS], {}, "their brightest pixel is at 6.1%"),
        ([PHOTO // 20], [LABELS], {}, "their brightest pixel is at 3.9%"),
        ([PHOTO // 20, PHOTO], [LABELS, LABELS], {}, ""),
        (
            [PHOTO] * 3,
            [LABELS, LABELS * 255, LABELS],
            {},
            "1 label image(s) have 255, which is ignored by default, but no pixel of b (1.png). 2 "
            "have b but no 255 (0.png, 2.png).",
        ),
        (
            [PHOTO] * 7,
            [LABELS, LABELS * 2, *[LABELS * 255] * 3, LABELS * 0, RIMMED],
            {"classes": ["a", "b", "c"]},
            "3 label image(s) have 255, which is ignored by default, but no pixel of b (2.png, "
            "3.png, 4.png). 1 have b but no 255 (0.png).",
        ),
        ([PHOTO] * 5, [RIMMED, RIMMED, LABELS, LABELS * 0, LABELS * 255], {}, ""),
        ([PHOTO] * 2, [LABELS, LABELS * 255], {"ignore": 255}, ""),
        ([PHOTO] * 2, [LABELS, RIMMED], {}, ""),
        (
            [PHOTO[..., 0], np.full((2, 4), 51200, np.uint16)],
            [LABELS, LABELS],
            {"channels": 1},
            "found 1 16-bit and 1 8-bit image(s)",
        ),
        ([(PHOTO, TURNED)], [LABELS], {}, "EXIF data rotate or mirror 1 image(s)"),
    ],
)
def test_warnings_about_data_without_faults(tmp_path, photos, labels, about, warning):
    for folder, pictures in (("images", photos), ("labels", labels)):
        (tmp_path / folder).mkdir()
        for k, picture in enumerate(pictures):
            pixels, exif = picture if isinstance(picture, tuple) else (picture, None)
            Image.fromarray(pixels).save(tmp_path / f"{folder}/{k}.png", exif=exif)
    split = {"images": "images", "labels": "labels"}
    content = {"name": "sem", "semantic": {"train": split, "val": split}, "classes": ["a", "b"]}
    (tmp_path / "sem.yaml").write_text(yaml.safe_dump(content | about))
    for _ in range(2):  # the second result is remembered
        found = str(check_data(tmp_path / "sem.yaml", workers=1))
        assert warning in found and ("Warning: " in found) == bool(warning)


PALETTE = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (0, 0, 128)]


def coloured(*colours: tuple[int, int, int]) -> list[dict]:
    return [{"name": n, "color": [*c]} for n, c in zip("abc", colours, strict=True)]


def palette_data(folder, classes: list, **splits: list[tuple[int, ...]]) -> Path:
    """Write and return a data file, with a label image for each order of PALETTE in a split."""
    shown = np.repeat([[0, 1, 2]], [4, 6, 6], axis=1).reshape(4, 4).astype(np.uint8)
    content = {"name": "pal", "classes": classes, "semantic": {}}
    for split, orders in splits.items():
        content["semantic"][split] = {k: f"{split}/{k}" for k in ("images", "labels")}
        for place in content["semantic"][split].values():
            (folder / place).mkdir(parents=True)
        for k, order in enumerate(orders, 3):
            labels = Image.fromarray(np.argsort(order).astype(np.uint8)[shown], "P")
            labels.putpalette(np.ravel([PALETTE[c] for c in order]).tolist())
            labels.save(folder / f"{split}/labels/{k}.png")
            Image.fromarray(shown).save(folder / f"{split}/images/{k}.png")
    (folder / "pal.yaml").write_text(yaml.safe_dump(content))
    return folder / "pal.yaml"


ABC = ["a", "b", "c"]


@pytest.mark.parametrize(
    "orders, classes, expected",
    [
        ([(0, 1, 2), (2, 0, 1)], coloured(*PALETTE[:3]), [4, 6, 6]),
        ([(2, 0, 1)] * 2, coloured(*PALETTE[:3]), "class (3.png, 4.png). The colours are"),
        ([(0, 1, 2)] * 2, coloured(*PALETTE[:3]), [4, 6, 6]),
        ([(2, 0, 1)] * 2, coloured((1, 1, 1), (2, 2, 2), (3, 3, 3)), [6, 4, 6]),  # by number
        ([(2, 0, 1)] * 2, ABC, [6, 4, 6]),
        ([(0, 1, 2), (2, 0, 1)], ABC, "[34].png: palette index . has .* of .*[34].png"),
        ([(0, 1, 2), (0, 1, 2), (0, 1, 3)], ABC, "5.png: palette index 2 .* index 2 of .*4.png"),
        ([(0, 1, 2), (0, 1, 3)], ABC, [4, 6, 6]),
        (
            [(2, 0, 1)],
            coloured(*PALETTE[:2], (0, 128, 1)),
            r"index 1 .* \[0, 0, 0\] of 'a', but 1 is the label of 'b'.*: \[0, 128, 0\]\.",
        ),
        ([(0, 1, 2)] * 2, coloured(*PALETTE[:2], (0, 128, 1)), [4, 6, 6]),
        ([(0, 1, 2)] * 2, coloured((1, 1, 1), (2, 2, 2), PALETTE[0]), [4, 6, 6]),  # by chance
        ([(0, 1, 2), (2, 0, 1)], coloured(*PALETTE[:2], (1, 1, 1)), "[34].png: palette index ."),
        (
            [(0, 1, 2), (2, 0, 1)],
            [c | {"labels": k} for k, c in enumerate(coloured(*PALETTE[:3]))],
            "Give each class its color but no labels .* without palettes",
        ),
    ],
)
def test_palettes_that_a_program_has_sorted(tmp_path, orders, classes, expected):
    """Colours count if all are known; else palettes in several orders are a fault."""
    file = palette_data(tmp_path, classes, train=orders)
    try:
        (summary,) = check_data([file], workers=1).splits
    except DataFaults as error:
        assert re.search(str(expected), str(error))
        return
    if isinstance(expected, str):
        assert expected in summary.warnings[0]
    else:
        assert [c.pixels for c in summary.classes] == [n * len(orders) for n in expected]
        assert not [text for text in summary.warnings if "palette" in text]


def test_palettes_that_a_program_has_sorted_in_one_split(tmp_path):
    splits = {"train": [(0, 1, 2)] * 2, "val": [(2, 0, 1)] * 2}
    file = palette_data(tmp_path, ["a", "b", "c"], **splits)
    for _ in range(2):  # the second time, the summaries of the splits are remembered
        (fault,) = faults_of(check_data, file, 1)
        assert re.search("val/labels/4.png: palette index . .* of .*train/labels/4.png has", fault)
    palette_data(tmp_path / "colours", coloured(*PALETTE[:3]), **splits)
    check_data(tmp_path / "colours/pal.yaml", workers=1)


def test_things_without_stuff_and_too_many_things(tmp_path):
    raw = RawData(tmp_path)
    raw.content["categories"] = [{"id": CAT, "name": "cat", "isthing": 1}]
    for key in ("images", "annotations"):
        raw.content[key].clear()
    ids = np.arange(121).reshape(11, 11)
    segments = [{"id": n, "category_id": CAT} for n in range(1, 121)]
    raw.add(1, "a.png", "a.png", ids, segments)
    raw.add(2, "b.png", "b.png", np.zeros((3, 3), int), [])
    stuff, many = check_data([raw.described()], workers=1).warnings_for(100)
    assert "no stuff classes, and 1% of the pixels are void" in stuff and "--rest" in stuff
    assert "images without things are left out (1 here)" in stuff
    for fact in ("a.png", "120", "100", "TEST.DETECTIONS_PER_IMAGE"):
        assert fact in many
    assert len(check_data([raw.described()], workers=1).warnings_for(120)) == 1
    for segment in raw.content["annotations"][0]["segments_info"]:
        segment["iscrowd"] = 1
    crowds, _ = check_data([raw.described()], workers=1).warnings_for(120)
    assert "all segments of cat are crowds" in crowds


def test_a_few_faults_are_all_shown_and_shared_faults_once():
    assert str(DataFaults(["/a: x"])) == "1 fault in the data:\n  /a: x"
    names = list("abcdefghijklmnopqrst")
    assert str(DataFaults(names * 2)).split("\n  ") == ["20 faults in the data:", *names]


def test_the_first_twenty_faults_are_shown_and_all_are_in_a_file(tmp_path):
    many = [f"/d/{n}.jpg: image {n} not found." for n in range(2000)]
    path = tmp_path / "new/faults.txt"
    with pytest.raises(DataFaults) as error, faults_listed(path):
        raise DataFaults(many)
    title, *first, rest = str(error.value).splitlines()
    assert (title, rest) == (
        "2,000 faults in the data:",
        f"  and 1,980 more (all are listed in {path})",
    )
    assert first == [f"  {fault}" for fault in many[:20]]
    assert path.read_text().splitlines() == many
    copy = pickle.loads(pickle.dumps(DataFaults(many)))
    assert copy.faults == many and str(copy).endswith("and 1,980 more")


def test_each_fault_is_one_printable_line():
    error = DataFaults(["/d/\x1b[31m\n\x9b\ud800.jpg: lost", "x" * 30_000 + ". Do this."])
    first, second = str(error).splitlines()[1:]
    assert first == r"  /d/\x1b[31m\n\x9b\ud800.jpg: lost"
    assert len(second) < 500 and second.endswith("xx. Do this.")
    assert first_few(["\x1b", "b"]) == r"\x1b, b"


def test_a_check_writes_all_faults_to_a_file(raw):
    raw.content["images"] = [{"id": number} for number in range(30)]
    with pytest.raises(DataFaults) as error:
        raw.checked()
    path = cache_folder() / "pets_faults.txt"
    assert str(error.value).endswith(f"(all are listed in {path})")
    assert len(path.read_text().splitlines()) == len(error.value.faults) > 30
