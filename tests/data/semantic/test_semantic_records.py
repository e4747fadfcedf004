"""Images and label PNGs are paired by their names."""

import pytest

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.data.semantic.records import LabelledFolder
from support.faults import faults_of


@pytest.fixture
def touch(tmp_path):
    def make(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()

    return make


@pytest.fixture
def folder(tmp_path) -> LabelledFolder:
    return LabelledFolder(tmp_path / "i", tmp_path / "l")


def test_pairs_in_sub_folders(touch, folder, tmp_path):
    touch("i/b/2.JPG", "i/1.tiff", "l/b/2.png", "l/1.png", "i/.hidden.jpg", "i/Thumbs.db")
    assert folder.pairs() == [
        (tmp_path / "i/1.tiff", tmp_path / "l/1.png"),
        (tmp_path / "i/b/2.JPG", tmp_path / "l/b/2.png"),
    ]


def test_linked_folders_and_letters_of_macos(touch, folder, tmp_path):
    """Names from macOS have accents apart from their letters."""
    touch("disk/city/1.jpg", "l/city/1.png", "i/\u00e9/\u00fc.jpg", "l/e\u0301/u\u0308.png")
    (tmp_path / "i/city").symlink_to(tmp_path / "disk/city")
    assert len(folder.pairs()) == 2


def test_missing_label(touch, folder, tmp_path):
    touch("i/a/1.jpg", "i/2.jpg", "i/3.jpg", "l/2.png")
    assert faults_of(folder.pairs) == [
        f"{tmp_path / 'i/3.jpg'}: label image {tmp_path / 'l/3.png'} not found.",
        f"{tmp_path / 'i/a/1.jpg'}: label image {tmp_path / 'l/a/1.png'} not found.",
        "2 of 3 files have no label image. Move files that should not be used out of "
        f"{tmp_path / 'i'}.",
    ]


def test_surplus_labels_are_left_out(touch, folder, caplog):
    touch("i/1.jpg", "l/1.png", "l/2.png", "l/3.png", "i/3.HEIC", "i/1.dng")
    assert len(folder.pairs()) == 1
    assert "2 label image(s) without an image: 2, 3. Convert 1 HEIC or raw photos" in caplog.text


def test_labels_choose_the_images(touch, tmp_path, caplog):
    touch("i/1.jpg", "i/2.jpg", "l/2.png")
    folder = LabelledFolder(tmp_path / "i", tmp_path / "l", (".jpg",), listed_by_labels=True)
    assert folder.pairs() == [(tmp_path / "i/2.jpg", tmp_path / "l/2.png")]
    assert not caplog.text
    touch("l/3.png")
    with pytest.raises(DataFaults, match=rf"l/3\.png: image {tmp_path}/i/3\.jpg not found"):
        folder.pairs()


@pytest.mark.parametrize(
    ("images", "labels", "files", "pairs"),
    [
        ("i", "l/{stem}_mask.png", "i/a.jpg i/s/b.jpg l/a_mask.png l/s/b_mask.png l/x.png", 2),
        ("i", "l/mask-{stem}.tif", "i/a.jpg i/s/b.png l/mask-a.tif l/s/mask-b.tif", 2),
        ("i", "l/{stem}_mask", "i/a.jpg i/b.jpg l/a_mask.gif l/b_mask.bmp", 2),
        ("i", "l", "i/a.jpg i/b.jpg l/a.jpg l/b.jpg l/b.png", 2),
        ("i", "i", "i/a.jpg i/a.png i/s/b.jpg i/s/b.png", 2),
        ("i", "i/{stem}_mask.png", "i/a.png i/a_mask.png i/b.png i/b_mask.png", 2),
        ("i", "i/masks", "i/a.png i/masks/a.png", 1),
        ("i/images", "i", "i/a.png i/images/a.png", 1),
        ("i/{stem}/photo.jpg", "i/{stem}/labels.png", "i/a/photo.jpg i/a/labels.png", 1),
        ("i/{stem}/images/{stem}.png", "l", "i/a/images/a.png i/a/masks/a.png l/a.png", 1),
    ],
)
def test_common_naming_schemes(touch, tmp_path, images, labels, files, pairs):
    touch(*files.split())
    found = LabelledFolder(tmp_path / images, tmp_path / labels).pairs()
    assert len(found) == pairs and len({file for pair in found for file in pair}) == 2 * pairs
    assert not any("mask" in image.name or "labels" in image.name for image, _ in found)


@pytest.mark.parametrize(
    ("labels", "facts"),
    [
        ("l/1_L.png l/2_L.png", ("example, 1_L.png, 2_L.png.", "l/{stem}_mask.png", "--from")),
        ("l/1.npy l/2.npy", ("l. No file", "ends in .png, ", "import")),
    ],
)
def test_other_label_names_are_one_fault(touch, folder, labels, facts):
    touch("i/1.jpg", "i/2.jpg", *labels.split())
    (fault,) = faults_of(folder.pairs)
    assert all(fact in fault for fact in ("i/1.jpg: ", "2 files", *facts))


@pytest.mark.parametrize("name", ["a\n", "\udcff"], ids=["control", "not UTF-8"])
def test_names_that_no_result_can_have(touch, folder, name):
    """They would end a run when the scores of its images are written."""
    touch(f"i/{name}.jpg", f"l/{name}.png")
    faults = faults_of(folder.pairs)
    assert len(faults) == 2 and all("Rename it" in fault for fault in faults)


def test_pngs_of_images_and_labels_in_one_folder(touch, folder, tmp_path):
    touch("i/a.png", "i/a_mask.png", "i/a.jpg", "l/a.png", "l/a_mask.png")
    with pytest.raises(DataFaults, match="same name as .*, except for the suffix"):
        folder.pairs()
    (tmp_path / "i/a.jpg").unlink()
    (fault,) = faults_of(LabelledFolder(tmp_path / "i", tmp_path / "i").pairs)
    assert 'labels: "i/{stem}_mask.png"' in fault


def test_no_folder_and_no_image(tmp_path):
    images, labels = tmp_path / "i", tmp_path / "l"
    folder = LabelledFolder(images, labels, hint="Unpack it.")
    with pytest.raises(FileNotFoundError, match=f"{images}: folder of images not found. Unpack"):
        folder.pairs()
    images.mkdir()
    with pytest.raises(FileNotFoundError, match=f"{labels}: folder of label images not found"):
        folder.pairs()
    labels.mkdir()
    with pytest.raises(DataFaults, match=r"i: no files that end in \.jpg.*Unpack it"):
        folder.pairs()
