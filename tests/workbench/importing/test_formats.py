"""The common battery of all formats, on a scene that each format writes."""

import json
from pathlib import Path

import pytest
from PIL import Image

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS
from ocr_panoptic.workbench.importing.import_plan import AnnotationSource, ImportPlan
from ocr_panoptic.workbench.importing.importing import import_annotations
from ocr_panoptic.workbench.importing.kinds import Kinds
from support.annotation_files import SCENES, SIZE, WRITERS, save
from support.faults import faults_of

KINDS = Kinds(("car",), ("sky",))
pytestmark = [
    pytest.mark.usefixtures("clean_catalog"),
    pytest.mark.parametrize("format, write", WRITERS, ids=[write.__name__ for _, write in WRITERS]),
]


def draw_images(root: Path, size: tuple[int, int] = SIZE) -> None:
    for name in SCENES:
        (root / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size[::-1]).save(root / "images" / name)


def read(format: str, written: tuple) -> list:
    return list(ANNOTATION_FORMATS[format].read(*written))


def test_pixels(tmp_path, format, write):
    """Rectangles keep their pixels, in images that are not square and in subfolders."""
    draw_images(tmp_path)
    images = {image.name: image for image in read(format, write(tmp_path, SCENES))}
    assert images.keys() == SCENES.keys()
    for name, boxes in SCENES.items():
        assert (images[name].height, images[name].width) == SIZE
        assert images[name].file.is_file()
        found = images[name].segments
        named = {(s.label.replace("sofa", "sky"), s.pixels().tobytes()) for s in found}
        assert named == {(box.label, box.pixels(SIZE).tobytes()) for box in boxes}
        assert not any(s.is_crowd or s.instance is False and s.label == "car" for s in found)


def test_missing_images(tmp_path, format, write):
    """
    The message names all, with their files, before any segment is read.

    import.json has the number of skipped images.
    """
    if format == "yolo-seg":
        pytest.skip("the images say which labels are read")
    draw_images(tmp_path)
    written = write(tmp_path, SCENES)
    first, second = sorted(p for f in ("images", "sets") for p in (tmp_path / f).rglob("*.png"))
    second.unlink()
    sources = {"train": AnnotationSource(*written)}
    *faults, hint = faults_of(import_annotations, "x", sources, ImportPlan(format, KINDS), tmp_path)
    assert len(faults) == 1 and hint.startswith("1 of 2 images not found. To leave them out")
    kinds = Kinds(("car",), ("sky", "sofa"))
    plan, output = ImportPlan(format, kinds, skip_missing=True), tmp_path / "out"
    import_annotations("x", sources, plan, output, 1)
    assert json.loads((output / "raw/import.json").read_text())["missing"] == {"train": 1}
    assert len(json.loads((output / "raw/train/panoptic.json").read_text())["images"]) == 1
    first.unlink()
    faults = faults_of(read, format, written)
    assert len(faults) == 2 and all("not found" in fault for fault in faults)
    assert all(f.startswith(str(tmp_path)) and f.endswith("the right folder?") for f in faults)


def test_images_of_another_size(tmp_path, format, write):
    if format in ("yolo-seg", "via"):
        pytest.skip("it does not say the size")
    draw_images(tmp_path, SIZE[::-1])
    faults = faults_of(read, format, write(tmp_path, SCENES))
    assert len(faults) >= 2
    assert all("40x24 pixels, but the image" in f and "24x40 (width" in f for f in faults)


@pytest.mark.parametrize("outside", ["../a.png", "{}/a.png"])
def test_names_outside_the_folder(tmp_path, format, write, outside):
    """Nothing outside the folder is read, even if it exists."""
    if format in ("cityscapes", "cityscapes-polygons", "supervisely"):
        pytest.skip("the files have the names of their images")
    (tmp_path / "images").mkdir()
    Image.new("RGB", SIZE[::-1]).save(tmp_path / "a.png")
    name, boxes = outside.format(tmp_path), SCENES["a.png"]
    by_name = format in ("coco", "cvat", "label-studio", "via")
    source, images = write(tmp_path, {name if by_name else "a.png": boxes})
    if format == "voc":
        source = save(tmp_path / "lists/Segmentation/train.txt", name.removesuffix(".png"))
    elif format == "yolo-seg":
        save(tmp_path / "images/train.txt", name)
        save(source, "names: [car, sky]\ntrain: images/train.txt")
    elif format == "labelme":
        content = json.loads((source / "a.json").read_text()) | {"imagePath": f"../images/{name}"}
        save(source / "a.json", content)
    with pytest.raises(DataFaults):
        read(format, (source, images))


def test_damage_is_reported_before_anything_is_written(tmp_path, format, write):
    """
    Each annotation file is cut off in turn.

    The message names it, and the data set's folder is not created.
    """
    draw_images(tmp_path)
    source, images = write(tmp_path, {"a.png": SCENES["a.png"]})
    damaged = source
    if source.is_dir():
        suffixes = (".json", ".png") if format in ("voc", "cityscapes") else (".json",)
        damaged = [p for p in sorted(source.rglob("*.*")) if p.suffix in suffixes][-1]
        damaged = next(iter(sorted(source.glob("SegmentationClass/*"))), damaged)
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    plan, output = ImportPlan(format, KINDS), tmp_path / "out"
    with pytest.raises(ValueError, match=damaged.name):
        import_annotations("x", {"train": AnnotationSource(source, images)}, plan, output, 1)
    assert not output.exists()


def test_a_missing_source(tmp_path, format, write):
    (tmp_path / "images").mkdir()
    with pytest.raises((FileNotFoundError, ValueError), match="nowhere"):
        read(format, (tmp_path / "nowhere", tmp_path / "images"))
