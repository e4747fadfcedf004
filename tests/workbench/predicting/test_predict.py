"""``ocr-panoptic predict`` from end to end."""

import json
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from detectron2.data import Metadata, MetadataCatalog
from detectron2.data.detection_utils import read_image
from panopticapi.utils import rgb2id
from PIL import Image
from pycocotools.coco import COCO

import demo
from ocr_panoptic.config.files import load_config
from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.data_file import PanopticSplit, write_data_file
from ocr_panoptic.data.panoptic.annotations import panoptic_metadata, parse_categories
from ocr_panoptic.evaluation.stored import read_table
from ocr_panoptic.predict import result as results_module
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.result import classes_of
from ocr_panoptic.predict.single_image import model_input
from ocr_panoptic.predict.trained_model import build_trained_model
from support.tiny_runs import TILES, pixels, write_video

pytestmark = pytest.mark.slow


def outputs_of(model: list[str]):
    cfg = load_config(model[1], [*model[4:], "MODEL.WEIGHTS", model[3]])
    complete_config(cfg)
    network = build_trained_model(cfg)

    def output(path: Path) -> dict:
        with torch.inference_mode():
            return network([model_input(cfg, read_image(path, cfg.INPUT.FORMAT))])[0]

    return output


def read(path: Path):
    return json.loads(path.read_text())


def test_panoptic_results(model_of, call, images, tmp_path):
    """Results equal the model's; the data check and pycocotools accept the files."""
    model, out = model_of("panoptic"), tmp_path / "out"
    assert call(model, images, "--overlays") == 0
    output_of = outputs_of(model)
    content = read(out / "panoptic.json")
    split = PanopticSplit(images, out / "panoptic.json", out / "panoptic")
    write_data_file(tmp_path / "predicted.yaml", "predicted", {"val": split})
    check_data([tmp_path / "predicted.yaml"], workers=1)
    names = sorted(path.name for path in images.iterdir())
    assert [image["file_name"] for image in content["images"]] == names
    things = MetadataCatalog.get("tiny_val").thing_dataset_id_to_contiguous_id
    count = 0
    for image, annotation in zip(content["images"], content["annotations"], strict=True):
        expected = output_of(images / image["file_name"])
        ids, segments = expected["panoptic_seg"]
        stem = Path(image["file_name"]).stem
        found = rgb2id(pixels(out / "panoptic" / annotation["file_name"]))
        assert np.array_equal(found, ids.numpy())
        assert [s["id"] for s in annotation["segments_info"]] == [s["id"] for s in segments]
        labels = expected["sem_seg"].argmax(0)
        assert np.array_equal(pixels(out / f"labels/{stem}.png"), labels.numpy())
        # The confidence of stuff is the softmax at the label, of things the score.
        probability = expected["sem_seg"].softmax(0).amax(0)
        for segment in segments:
            if segment["isthing"]:
                probability[ids == segment["id"]] = segment["score"]
        probability[ids == 0] = 0
        confidence = pixels(out / f"confidence/{stem}.png")
        assert np.abs(confidence - 255 * probability.numpy()).max() <= 0.51
        for segment in annotation["segments_info"]:
            mean = probability[ids == segment["id"]].mean().item()
            assert segment["confidence"] == pytest.approx(mean, abs=1e-4)
        own = read(out / f"coco/{stem}.json")["instances"]
        instances = expected["instances"]
        assert [r["score"] for r in own] == instances.scores.tolist()
        assert [things[r["category_id"]] for r in own] == instances.pred_classes.tolist()
        assert pixels(out / f"overlays/{stem}.jpg").shape == (*ids.shape, 3)
        count += len(own)
    names = {c["id"]: c["name"] for c in content["categories"] if c["isthing"]}
    for row, image, annotation in zip(
        read_table(out / "counts.csv"), content["images"], content["annotations"], strict=True
    ):
        found = [names.get(s["category_id"]) for s in annotation["segments_info"]]
        expected = {name: str(found.count(name)) for name in names.values()}
        assert row == {"file_name": image["file_name"], **expected}
    kinds = {c["isthing"] for c in content["categories"]}
    assert kinds == {0, 1} and count > 4  # the test covers both


def test_semantic_results(model_of, images, tmp_path, caplog):
    """A list has a missing and a repeated image; overlays have the labels' colours."""
    model, out, first = model_of("semantic"), tmp_path / "out", sorted(images.iterdir())[0]
    shutil.copy(first, tmp_path / "near.jpg")
    listed = tmp_path / "images.txt"
    listed.write_text("\n".join(["near.jpg", "", *map(str, images.iterdir()), "gone.jpg"] * 2))
    places = {path.name: path for path in (tmp_path / "near.jpg", *images.iterdir())}
    words = [*model[:4], "--input", str(listed), "--output", str(out), *model[4:]]
    assert demo.main(words) == 1 and "gone.jpg: image not found" in caplog.text
    colors = np.asarray(MetadataCatalog.get("tiny_sem_val").stuff_colors)
    output_of = outputs_of(model)
    entries = read(out / "labels.json")["images"]
    for entry in entries:
        image = places[Path(entry["file_name"]).name]
        found = pixels(out / "labels" / entry["labels"])
        assert np.array_equal(found, output_of(image)["labels"].numpy())
        drawn = pixels((out / "overlays" / entry["labels"]).with_suffix(".jpg")).astype(float)
        expected = 0.72 * colors[found] + 0.28 * pixels(image).mean(axis=2, keepdims=True)
        assert len(np.unique(found)) > 1
        assert (np.abs(drawn - expected).max(axis=2) < 40).mean() > 0.6  # the rest are outlines
        areas = {s["label"]: s["area"] for s in entry["segments"]}
        values, counts = np.unique(found, return_counts=True)
        assert areas == dict(zip(values.tolist(), counts.tolist(), strict=True))
        confidence = pixels(out / "confidence" / entry["labels"]) / 255
        for segment in entry["segments"]:
            mean = confidence[found == segment["label"]].mean()
            assert segment["confidence"] == pytest.approx(mean, abs=2e-3)
    assert len(entries) == 5


@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_coco_json(kind, model_of, call, images, tmp_path):
    """One file for pycocotools has all images, with the PNGs' masks, and no category 0."""
    out = tmp_path / "out"
    assert call(model_of(kind), images, "--labels", "dataset") == 0
    if kind == "panoptic":
        first = sorted(images.iterdir())[0]
        assert call(model_of(kind), first, output="train") == 0
        train, own = (pixels(tmp_path / f / f"labels/{first.stem}.png") for f in ("train", "out"))
        ids = MetadataCatalog.get("tiny_val").stuff_dataset_id_to_contiguous_id
        ids = np.array([0, *sorted(ids, key=ids.get)[1:]])
        assert np.array_equal(own, ids[train]) and not np.array_equal(own, train)
    coco = COCO(str(out / "coco.json"))
    names = {c["id"]: c["name"] for c in coco.loadCats(coco.getCatIds())}
    assert 0 not in names and len(coco.getImgIds()) == 4
    content = read(out / ("panoptic.json" if kind == "panoptic" else "labels.json"))
    listed = content["categories"] if kind == "panoptic" else content["classes"]
    assert [*names.values()] == [entry["name"] for entry in listed]
    for image in coco.loadImgs(coco.getImgIds()):
        folder = out / ("panoptic" if kind == "panoptic" else "labels")
        png = pixels(folder / f"{Path(image['file_name']).stem}.png")
        ids = rgb2id(png) if kind == "panoptic" else png.astype(int) + 1
        annotations = coco.loadAnns(coco.getAnnIds(image["id"]))
        assert len(annotations) == len(np.unique(ids[ids > 0])) > 1
        for annotation in annotations:
            mask = coco.annToMask(annotation).astype(bool)
            (number,) = np.unique(ids[mask])
            assert (mask == (ids == number)).all() and annotation["area"] == mask.sum()
            y, x = np.nonzero(mask)
            box = [x.min(), y.min(), x.max() - x.min() + 1, y.max() - y.min() + 1]
            assert annotation["bbox"] == box and annotation["iscrowd"] == 0
            assert 0 < annotation["score"] <= 1
            if kind == "semantic":
                known = {"label": number - 1, "name": names[annotation["category_id"]]}
                assert content["classes"][number - 1].items() >= known.items()


@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_a_repeated_call_adds_missing_files(kind, model_of, call, images, tmp_path, monkeypatch):
    """The JSON files equal the files of a single call for all images."""
    model, out, folder = model_of(kind), tmp_path / "out", tmp_path / "images"
    shutil.copytree(images, folder)
    a, b, c, d = (path.stem for path in sorted(folder.iterdir()))
    assert call(model, folder, "--overlays") == 0
    name = "panoptic.json" if kind == "panoptic" else "labels.json"
    whole = {file: (out / file).read_text() for file in (name, "coco.json")}
    saved, save = [], results_module.Result.save
    monkeypatch.setattr(
        results_module.Result, "save", lambda own, *how: saved.append(own.name) or save(own, *how)
    )

    def again(*expected: str) -> None:
        saved.clear()
        assert call(model, folder, "--overlays") == 0
        assert saved == list(expected)
        assert {file: (out / file).read_text() for file in whole} == whole

    again()
    for file in (f"labels/{a}.png", f"overlays/{b}.jpg", f"coco/{d}.json", "coco.json"):
        (out / file).unlink()
    again(a, b, d)
    (out / f"confidence/{d}.png").write_bytes(b"")
    again(d)
    (out / f"coco/{a}.json").write_text("{")
    with pytest.raises(ValueError, match=f"{a}.json: not valid JSON"):
        call(model, folder, "--overlays")
    (out / f"coco/{a}.json").unlink()
    os.utime(folder / f"{c}.jpg", (2**33, 2**33))
    again(a, c)
    model[3] = shutil.copy(model[3], str(tmp_path / "newer.pth"))
    os.utime(model[3], (2**33, 2**33))
    again(a, b, c, d)


def test_a_full_disk_leaves_whole_files(model_of, call, images, tmp_path, monkeypatch):
    """A repeated call goes on, as test_a_repeated_call_adds_missing_files shows."""
    write, calls = results_module.write_label_png, []

    def failing(path, labels):
        calls.append(path)
        if len(calls) > 5:
            raise OSError(28, "No space left on device")
        write(path, labels)

    monkeypatch.setattr(results_module, "write_label_png", failing)
    with pytest.raises(OSError, match="No space left"):
        call(model_of("semantic"), images)
    assert 0 < len([*(tmp_path / "out/coco").iterdir()]) < 4
    assert not (tmp_path / "out/coco.json").exists() and not [*(tmp_path / "out").rglob("*.tmp")]


def test_unreadable_images_and_repeated_names(model_of, call, images, tmp_path, caplog):
    """The other images are predicted; faults are listed at the end."""
    folder, out = tmp_path / "images", tmp_path / "out"
    first, second, *_ = sorted(images.iterdir())
    for place in ("a/x.jpg", "b/x.jpg", "b/x.jpeg"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(first, folder / place)
    Image.open(second).convert("L").save(folder / "b/grey.png")
    Image.new("RGB", (5000, 1)).save(folder / "b/thin.png")  # its height shrinks to 0
    Image.new("RGB", (1, 2666)).save(folder / "b/narrow.png")  # its width shrinks to 1 pixel
    (folder / "a/broken.jpg").write_bytes(first.read_bytes()[:300])
    (folder / "a/photos.zip").touch()
    (folder / "a/text.png").write_text("no image")
    assert call(model_of("panoptic"), folder) == 1
    found = {p.relative_to(out / "labels").as_posix() for p in (out / "labels").rglob("*.png")}
    assert found == {"a/x.png", "b/x.jpg.png", "b/x.jpeg.png", "b/grey.png", "b/narrow.png"}
    assert len(read(out / "panoptic.json")["images"]) == len(read(out / "coco.json")["images"]) == 5
    for text in (
        "No results for 3 image(s)",
        f"{folder}/a/broken.jpg: the image is broken",
        f"{folder}/a/text.png: the image is in an unknown format",
        f"{folder}/b/thin.png: the image of 5000x1 pixels",
        "1 file(s) left out: 1 x unsupported suffix (.zip)",
    ):
        assert text in caplog.text


@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_scores_that_are_not_finite(kind, model_of, call, images, tmp_path, caplog):
    """The image has no results, even if only scores overflow."""
    model = model_of(kind)
    content = torch.load(model[3])
    name = next(n for n in content["model"] if n.endswith("refined_predictor.weight"))
    content["model"][name].fill_(3e38)
    torch.save(content, tmp_path / "huge.pth")
    assert call([*model[:3], str(tmp_path / "huge.pth"), *model[4:]], images) == 1
    assert caplog.text.count("of 4096 pixels are NaN or infinite") == 4
    assert not [*(tmp_path / "out").rglob("*.png")]


def test_a_video(model_of, call, images, tmp_path):
    """Frames and images with equal pixels give equal files; the drawn frames are also a video."""
    video, out, frames = tmp_path / "v.avi", tmp_path / "out", tmp_path / "frames"
    write_video(video, sorted(images.iterdir()))
    capture = cv2.VideoCapture(str(video))
    frames.mkdir()
    for number in range(4):
        cv2.imwrite(str(frames / f"{number:06d}.png"), capture.read()[1])
    model = model_of("panoptic", *TILES)
    for source, output in ((video, "out"), (frames, "of_images")):
        assert call(model, source, "--overlays", output=output) == 0
    for name in ("panoptic.json", "coco.json"):
        assert (out / name).read_text() == (tmp_path / "of_images" / name).read_text()
    names = {p.relative_to(out) for p in out.rglob("*.*") if p.suffix in (".png", ".jpg")}
    assert len(names) == 16
    for name in names:
        assert (out / name).read_bytes() == (tmp_path / "of_images" / name).read_bytes(), name
    drawn = cv2.VideoCapture(str(out / "overlays.mp4"))
    assert drawn.get(cv2.CAP_PROP_FPS) == pytest.approx(10)
    for number in range(4):
        expected = cv2.imread(str(out / f"overlays/{number:06d}.jpg")).astype(int)
        assert np.abs(drawn.read()[1] - expected).mean() < 12
    assert not drawn.read()[0]
    kept = pixels(out / "panoptic/000003.png")
    (out / "panoptic/000003.png").unlink()
    assert call(model, video) == 0  # this predicts a frame in the middle, not the first
    assert np.array_equal(pixels(out / "panoptic/000003.png"), kept)
    assert not np.array_equal(kept, pixels(out / "panoptic/000000.png"))


@pytest.mark.parametrize("codec", ["MJPG", "mp4v"])
def test_a_video_that_is_cut_off(model_of, call, tmp_path, caplog, codec):
    """Frames before the cut are predicted, but the program does not end as if they were all."""
    video, out = tmp_path / "v.avi", tmp_path / "out"
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter_fourcc(*codec), 10, (64, 64))
    for frame in np.random.default_rng(0).integers(0, 256, (20, 64, 64, 3), np.uint8):
        writer.write(frame)
    writer.release()
    content = video.read_bytes()
    video.write_bytes(content[: len(content) // 2])
    assert call(model_of("semantic"), video, "--overlays") == 1
    done = len(list((out / "labels").iterdir()))
    assert 0 < done < 20
    assert f"{video}: the video ends after {done} of 20 frames" in caplog.text
    assert cv2.VideoCapture(str(out / "overlays.mp4")).get(cv2.CAP_PROP_FRAME_COUNT) == done


WINDOWS = ("TEST.SLIDING_WINDOW.SIZE", "[40, 40]", "TEST.SLIDING_WINDOW.STRIDE")
REFUSALS = [
    ("semantic", "gone", (), "gone: no such file or folder"),
    ("semantic", "empty.txt", (), "the list is empty"),
    ("semantic", "binary.txt", (), "is not a text file with a path on each line"),
    ("semantic", "x.pdf", (), "x.pdf has the suffix '.pdf'; expected"),
    ("semantic", "broken.avi", (), "cannot open .*broken.avi"),
    ("semantic", "images", ("MODEL.WEIGHTS", "gone.pth"), "gone.pth"),
    ("semantic", "images", ("TEST.SLIDING_WINDOW.SIZE", "[40, 40]"), "SLIDING_WINDOW"),
    ("panoptic", "images", (*WINDOWS, "[20]"), "tiles .*overlap"),
    ("panoptic", "images", (*WINDOWS, "[20, 20]"), "set INPUT.MIN_SIZE_TEST to 0"),
]


@pytest.mark.parametrize("kind, source, opts, message", REFUSALS)
def test_refusals(kind, source, opts, message, model_of, call, images, tmp_path):
    """A line names the file or key, before anything is written."""
    shutil.copytree(images, tmp_path / "images")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "x.pdf").write_text("")
    (tmp_path / "broken.avi").write_bytes(b"RIFF")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        call(model_of(kind, *opts), tmp_path / source)
    assert not [*(tmp_path / "out").rglob("*")]


def test_a_defect_is_raised_unchanged(model_of, call, images, monkeypatch):
    monkeypatch.setattr("ocr_panoptic.predict.model.model_input", lambda *_: int("a defect"))
    with pytest.raises(ValueError, match="^invalid literal .* 'a defect'$"):
        call(model_of("semantic"), images)


def test_classes_of_panoptic_data():
    def panoptic(categories: list[dict]) -> Metadata:
        return Metadata(name="data", **panoptic_metadata(parse_categories(categories, "x.json")))

    sky = {"id": 300, "name": "sky", "isthing": 0, "color": [1, 2, 3]}
    ball = {"id": 7, "name": "ball", "isthing": 1, "color": [4, 5, 6]}
    grass = {"id": 9, "name": "grass", "isthing": 0, "color": [7, 8, 9]}
    metadata = panoptic([sky, ball, grass])
    classes = classes_of(metadata, "dataset")
    assert classes.names == ["things", "grass", "sky"]
    assert classes.labels.tolist() == [0, 9, 300] and classes.labels.dtype == "uint16"
    assert classes.categories == [ball, grass, sky]
    assert (classes.thing_ids, classes.stuff_ids) == ([7], [0, 9, 300])
    assert classes_of(metadata, "train").labels.tolist() == [0, 1, 2]
    metadata = panoptic([{**sky, "id": 0}, ball, grass])  # no label is left for things
    with pytest.raises(ValueError, match="in data 0 is a category id. Use --labels train"):
        classes_of(metadata, "dataset")
    assert classes_of(metadata, "train").stuff_ids == [-1, 0, 9]


def test_classes_of_semantic_data():
    names, label_map = ["road", "car"], {7: 0, 26: 1, 27: 1, 0: 255}
    known = {"stuff_classes": names, "stuff_colors": [[1, 1, 1], [2, 2, 2]]}
    metadata = Metadata(name="data", **known, label_map=label_map)
    assert classes_of(metadata, "dataset").labels.tolist() == [7, 26]
    classes = classes_of(metadata, "train")
    assert classes.labels.tolist() == [0, 1] and classes.categories == []


def test_a_too_long_name_is_a_fault_of_its_image(model_of, call, images, tmp_path, caplog):
    long = shutil.copytree(images, tmp_path / "long")
    first = sorted(long.iterdir())[0]
    for name in ("a" * 247 + ".jpg", "b" * 252 + ".bw"):  # the name of its .png has 256 bytes
        shutil.copy(first, long / name)
    assert call(model_of("semantic"), long) == 1
    assert (tmp_path / "out/labels" / f"{'a' * 247}.png").exists()
    assert "No results for 1 image(s)" in caplog.text and "would be too long" in caplog.text
