"""tools/refine.py: files of every kind, against pixels moved by hand."""

import json
from pathlib import Path

import numpy as np
import pycocotools.mask as mask_util
import pytest
from PIL import Image

from ocr_panoptic.formats.coco_panoptic import read_panoptic_png, write_panoptic_png
from ocr_panoptic.formats.labels import read_label_png, write_label_png
from support.scripts import load_script

refine = load_script("tools/refine.py").main
io = pytest.importorskip("scipy.io", reason="SciPy is only needed to read MATLAB files")


@pytest.fixture
def offsets(tmp_path) -> np.ndarray:
    """Offsets of the image city/a, whose file is written."""
    rng = np.random.default_rng(0)
    offsets = rng.integers(-1, 2, (12, 17, 2))
    (tmp_path / "offsets/city").mkdir(parents=True)
    io.savemat(tmp_path / "offsets/city/a.mat", {"mat": offsets})
    return offsets


def by_hand(values: np.ndarray, offsets: np.ndarray, scale: int) -> np.ndarray:
    found = np.empty_like(values)
    for y, x in np.ndindex(values.shape):
        v, u = (y, x) + scale * offsets[y, x]
        found[y, x] = values[np.clip(v, 0, 11), np.clip(u, 0, 16)]
    return found


def stored(tmp_path: Path, predictions: str, output: str, *more: object) -> None:
    named = ["--predictions", tmp_path / predictions, "--output", tmp_path / output]
    refine([*map(str, named), "--offsets", str(tmp_path / "offsets"), *map(str, more)])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("scale", [1, 2])
def test_label_pngs(dtype, scale, offsets, tmp_path):
    labels = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, (12, 17)).astype(dtype)
    (tmp_path / "labels").mkdir()
    Image.fromarray(labels).save(tmp_path / "labels/a.png")  # without the folder of the offsets
    stored(tmp_path, "labels", "out", "--scale", scale)
    found = read_label_png(tmp_path / "out/a.png")
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, by_hand(labels, offsets, scale))


def test_panoptic(offsets, tmp_path):
    ids = np.repeat(np.repeat(np.array([[0, 7, 300, 9], [70000, 7, 0, 9]]), 6, 0), 5, 1)[:, :17]
    ids[3, 4] = 12  # one pixel, which nobody takes
    offsets[2:5, 3:6] = 0
    offsets[3, 4] = [0, 1]
    io.savemat(tmp_path / "offsets/city/a.mat", {"mat": offsets})
    write_panoptic_png(tmp_path / "pred/x.png", ids)
    segments = [
        {"id": number, "category_id": number % 5, "score": 0.25, "area": 1, "bbox": [0, 0, 1, 1]}
        for number in (7, 300, 9, 70000, 12)
    ]
    content = {
        "annotations": [{"image_id": 4, "file_name": "x.png", "segments_info": segments}],
        "images": [{"id": 4, "file_name": "city/a.jpg"}],
        "categories": [{"id": 1, "name": "road"}],
    }
    (tmp_path / "pred.json").write_text(json.dumps(content))
    stored(tmp_path, "pred.json", "out/new.json", "--scale", 1)

    expected = by_hand(ids, offsets, 1)
    np.testing.assert_array_equal(read_panoptic_png(tmp_path / "out/new/x.png"), expected)
    found = json.loads((tmp_path / "out/new.json").read_text())
    assert found["images"] == content["images"] and found["categories"] == content["categories"]
    (annotation,) = found["annotations"]
    by_id = {segment["id"]: segment for segment in annotation["segments_info"]}
    assert set(by_id) == set(np.unique(expected)) - {0} == {7, 300, 9, 70000}
    for number, segment in by_id.items():
        y, x = np.nonzero(expected == number)
        box = [x.min(), y.min(), x.max() - x.min() + 1, y.max() - y.min() + 1]
        assert segment["area"] == len(y) and segment["bbox"] == box
        assert segment["score"] == 0.25 and segment["category_id"] == number % 5


def test_instances(offsets, tmp_path):
    masks = np.random.default_rng(2).random((3, 12, 17)) < 0.3
    masks[2] = 0
    instances = [
        {"image_id": 11, "category_id": 2, "score": 0.5, "bbox": [1, 2, 3, 4]} for _ in masks
    ]
    for instance, mask in zip(instances, masks):
        rle = mask_util.encode(np.asfortranarray(mask))
        instance["segmentation"] = {"size": [12, 17], "counts": rle["counts"].decode()}
    instances[2]["segmentation"]["counts"] = [12 * 17]  # uncompressed
    (tmp_path / "pred.json").write_text(json.dumps(instances))
    with pytest.raises(ValueError, match=r"which images its ids are of \(11 ...\).*--image-list"):
        stored(tmp_path, "pred.json", "out.json")
    images = {"images": [{"id": 11, "file_name": "a.jpg"}]}
    (tmp_path / "images.json").write_text(json.dumps(images))
    stored(tmp_path, "pred.json", "out.json", "--image-list", tmp_path / "images.json")
    found = json.loads((tmp_path / "out.json").read_text())
    for instance, before, mask in zip(found, instances, masks, strict=True):
        moved = mask_util.decode(instance.pop("segmentation"))
        np.testing.assert_array_equal(moved, by_hand(mask, offsets, 2))
        before.pop("segmentation")
        assert instance == before


def test_the_oracle_knows_classes_and_segments(tiny_data, clean_catalog, tmp_path):
    """Predictions that are the truth one pixel too far to the right: a step into the true region
    mends most of it."""
    raw, wrong = tiny_data / "tiny/raw/val", tmp_path / "wrong"
    content = json.loads((raw / "panoptic.json").read_text())
    wrong.mkdir()
    (wrong / "panoptic.json").write_text(json.dumps(content))
    kinds = {
        "semantic": (read_label_png, write_label_png, "tiny_sem_val", "semantic", "labels"),
        "panoptic": (read_panoptic_png, write_panoptic_png, "tiny_val", "panoptic.json", "x.json"),
    }
    for folder, (read, write, dataset, predictions, output) in kinds.items():
        truths = {file.name: read(file) for file in (raw / folder).glob("*.png")}
        for name, truth in truths.items():
            write(wrong / folder / name, np.concatenate([truth[:, :1], truth[:, :-1]], axis=1))
        run = ["--predictions", str(wrong / predictions), "--output", str(tmp_path / output)]
        refine([*run, "--oracle", dataset, "--scale", "1"])
        found = (tmp_path / output).with_suffix("")
        before, after = (
            sum(np.count_nonzero(read(place / name) != truth) for name, truth in truths.items())
            for place in (wrong / folder, found)
        )
        assert after < before / 2


def test_mistakes(offsets, tmp_path):
    (tmp_path / "labels").mkdir()
    with pytest.raises(FileNotFoundError, match="labels: holds no label PNGs"):
        stored(tmp_path, "labels", "out")
    Image.fromarray(np.zeros((12, 17), np.uint8)).save(tmp_path / "labels/b.png")
    with pytest.raises(ValueError, match="1 of 1 predictions have no offset file.*: b. There are"):
        stored(tmp_path, "labels", "out")
    (tmp_path / "labels/b.png").unlink()
    Image.fromarray(np.zeros((6, 17), np.uint8)).save(tmp_path / "labels/a.png")
    with pytest.raises(ValueError, match="a: the prediction has 17x6 pixels, the offsets 17x12"):
        stored(tmp_path, "labels", "out")
    for output in ("labels", "labels/new"):
        with pytest.raises(ValueError, match="name a place of its own"):
            stored(tmp_path, "labels", output)
    with pytest.raises(FileNotFoundError, match="no such folder or file"):
        stored(tmp_path, "gone", "out")
    (tmp_path / "a.json").write_text('{"images": []}')
    with pytest.raises(ValueError, match="no list of instances and no panoptic JSON"):
        stored(tmp_path, "a.json", "out.json")
    (tmp_path / "a.json").write_text('[{"image_id": 1, "bbox": [0, 0, 1, 1]}]')
    with pytest.raises(ValueError, match="expected instances with image_id and a segmentation"):
        stored(tmp_path, "a.json", "out.json")
    for content in ('"annotations": [{"image_id": 1}]', '"annotations": [], "images": [{}]'):
        (tmp_path / "a.json").write_text(f"{{{content}}}")
        with pytest.raises(ValueError, match="is no panoptic JSON"):
            stored(tmp_path, "a.json", "out.json")
    with pytest.raises(FileNotFoundError, match="no folder with .mat files"):
        refine(["--predictions", str(tmp_path / "labels"), "--output", str(tmp_path / "out"),
                "--offsets", str(tmp_path / "gone")])  # fmt: skip
    for more in (
        *("--weights c", "--offsets c --images d", "--offsets c MODEL.DEVICE cpu"),
        "--offsets c --boundary-distance 3",
    ):
        with pytest.raises(SystemExit):
            refine(["--predictions", "a", "--output", "b", *more.split()])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["{}/pred/a.png", "../pred/a.png"])
def test_a_panoptic_png_outside_of_its_folder_is_refused(name, offsets, tmp_path):
    """The refined PNG would be written over the prediction by such a name."""
    ids = np.arange(12 * 17).reshape(12, 17)
    write_panoptic_png(tmp_path / "pred/a.png", ids)
    annotation = {"image_id": 1, "file_name": name.format(tmp_path), "segments_info": []}
    content = {"annotations": [annotation], "images": [{"id": 1, "file_name": "a.jpg"}]}
    (tmp_path / "pred.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="file_name must lie inside the given folder"):
        stored(tmp_path, "pred.json", "out.json")
    np.testing.assert_array_equal(read_panoptic_png(tmp_path / "pred/a.png"), ids)


@pytest.mark.parametrize(
    "segmentation, message",
    [
        ({"size": [17, 12], "counts": [204]}, "has 12x17 pixels, the offsets 17x12"),
        ({"size": [12, 17], "counts": [300]}, "Invalid RLE"),
        ({"size": [12, 17], "counts": 5}, "Expected bytes"),
        ({"size": [12], "counts": [204]}, "expected instances with image_id and a segmentation"),
    ],
)
def test_an_instance_that_is_broken_is_named(segmentation, message, offsets, tmp_path):
    good = {"image_id": 1, "segmentation": {"size": [12, 17], "counts": [204]}}
    instances = [good, {"image_id": 1, "segmentation": segmentation}]
    (tmp_path / "pred.json").write_text(json.dumps(instances))
    (tmp_path / "images.json").write_text('{"images": [{"id": 1, "file_name": "a.jpg"}]}')
    with pytest.raises(ValueError, match=message) as found:
        stored(tmp_path, "pred.json", "out.json", "--image-list", tmp_path / "images.json")
    assert "pred.json: " in str(found.value)
    assert not (tmp_path / "out.json").exists()
