"""tools/predict.py from end to end."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.data import MetadataCatalog
from detectron2.data.detection_utils import read_image
from panopticapi.evaluation import pq_compute_single_core
from panopticapi.utils import rgb2id
from PIL import Image

from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.data_file import PanopticSplit, write_data_file
from ocr_panoptic.engine import build_trained_model, complete_config, inputs, load_config
from ocr_panoptic.engine.single_image import model_input
from ocr_panoptic.modeling import panoptic_augmentation
from support.tiny_runs import pixels, write_video


def outputs_of(model: list[str]) -> Callable[[Path], dict]:
    """Return a function from an image to what the model itself gives."""
    cfg = load_config(model[1], [*model[4:], "MODEL.WEIGHTS", model[3]])
    complete_config(cfg)
    network = build_trained_model(cfg)

    def output(path: Path) -> dict:
        with torch.inference_mode():
            return network([model_input(cfg, read_image(path, cfg.INPUT.FORMAT))])[0]

    return output


@pytest.mark.slow
def test_panoptic_results(model_of, call, images, tmp_path):
    model, out = model_of("panoptic"), tmp_path / "out"
    assert call(model, images, "--overlays") == 0
    output_of = outputs_of(model)
    content = json.loads((out / "panoptic.json").read_text())
    split = PanopticSplit(images, out / "panoptic.json", out / "panoptic")
    write_data_file(tmp_path / "predicted.yaml", "predicted", {"val": split})
    check_data([tmp_path / "predicted.yaml"], workers=1)
    names = sorted(path.name for path in images.iterdir())
    assert [image["file_name"] for image in content["images"]] == names
    results = json.loads((out / "instances.json").read_text())
    metadata = MetadataCatalog.get("tiny_val")
    thing_of = {v: k for k, v in metadata.thing_dataset_id_to_contiguous_id.items()}
    for image, annotation in zip(content["images"], content["annotations"], strict=True):
        expected = output_of(images / image["file_name"])
        ids, segments = expected["panoptic_seg"]
        stem = Path(image["file_name"]).stem
        found = rgb2id(pixels(out / "panoptic" / annotation["file_name"]))
        assert np.array_equal(found, ids.numpy())
        assert [s["id"] for s in annotation["segments_info"]] == [s["id"] for s in segments]
        labels = expected["sem_seg"].argmax(0)
        assert np.array_equal(pixels(out / f"labels/{stem}.png"), labels.numpy())
        # Confidence: of stuff the softmax at the label, of things the score.
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
        own = [result for result in results if result["image_id"] == image["id"]]
        instances = expected["instances"]
        assert [r["score"] for r in own] == instances.scores.tolist()
        classes = [thing_of[k] for k in instances.pred_classes.tolist()]
        assert [r["category_id"] for r in own] == classes
        assert pixels(out / f"overlays/{stem}.jpg").shape == (*ids.shape, 3)
    kinds = {c["isthing"] for c in content["categories"]}
    assert kinds == {0, 1} and len(results) > 4  # the test sees both


@pytest.mark.slow
def test_semantic_results(model_of, call, images, tmp_path):
    model, out = model_of("semantic"), tmp_path / "out"
    assert call(model, images) == 0
    output_of = outputs_of(model)
    entries = json.loads((out / "labels.json").read_text())["images"]
    for entry in entries:
        expected = output_of(images / entry["file_name"])["labels"].numpy()
        found = pixels(out / "labels" / entry["labels"])
        assert np.array_equal(found, expected)
        areas = {s["label"]: s["area"] for s in entry["segments"]}
        values, counts = np.unique(found, return_counts=True)
        assert areas == dict(zip(values.tolist(), counts.tolist(), strict=True))
        confidence = pixels(out / "confidence" / entry["labels"]) / 255
        for segment in entry["segments"]:
            mean = confidence[found == segment["label"]].mean()
            assert segment["confidence"] == pytest.approx(mean, abs=2e-3)
    assert len(entries) == 4


@pytest.mark.slow
def test_panoptic_scores_are_upsampled_once(model_of, call, images, monkeypatch):
    """Labels and their confidence come from one pass over the classes."""
    times = []
    resized = panoptic_augmentation.resized_classes
    monkeypatch.setattr(
        panoptic_augmentation, "resized_classes", lambda *args: times.append(1) or resized(*args)
    )
    assert call(model_of("panoptic"), sorted(images.iterdir())[0]) == 0
    assert len(times) == 1


@pytest.mark.slow
def test_panopticapi_reads_it(model_of, call, images, tmp_path):
    """PQ of the predictions against themselves, by panopticapi."""
    out = tmp_path / "out"
    assert call(model_of("panoptic"), images) == 0
    content = json.loads((out / "panoptic.json").read_text())
    pairs = [(a, a) for a in content["annotations"]]
    categories = {c["id"]: c for c in content["categories"]}
    folder = str(out / "panoptic")
    stat = pq_compute_single_core(0, pairs, folder, folder, categories)
    result, _ = stat.pq_average(categories, isthing=None)
    assert result["pq"] == 1.0 and result["n"] > 1


@pytest.mark.slow
def test_going_on_after_a_stop(model_of, call, images, tmp_path, monkeypatch):
    """Only images that are missing or have changed are computed; the JSON is the same."""
    model, out = model_of("semantic"), tmp_path / "out"
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    assert call(model, folder) == 0
    whole = (out / "labels.json").read_text()
    # As after a kill: the last line is torn, one file is gone, another half written.
    (records,) = (out / "records").glob("*.jsonl")
    lines = records.read_bytes().splitlines(keepends=True)
    records.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    names = sorted(path.stem for path in folder.iterdir())
    (out / f"labels/{names[0]}.png").unlink()
    (out / "labels/.x.png.1.tmp").write_bytes(b"half")
    (out / "labels.json").unlink()

    seen = []
    read = inputs.read_picture
    monkeypatch.setattr(
        inputs, "read_picture", lambda path, *how: seen.append(path.stem) or read(path, *how)
    )
    assert call(model, folder) == 0
    assert sorted(seen) == [names[0], names[3]]
    assert (out / "labels.json").read_text() == whole
    assert not list(out.rglob("*.tmp")) and not (out / "missing.txt").exists()

    seen.clear()
    shutil.copy(folder / f"{names[1]}.jpg", folder / f"{names[2]}.jpg")
    assert call(model, folder) == 0
    assert seen == [names[2]]
    assert call(model, folder) == 0
    assert seen == [names[2]]


@pytest.mark.slow
def test_an_image_that_would_be_scaled_to_nothing(model_of, call, images, tmp_path):
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    Image.new("RGB", (5000, 1)).save(folder / "a.png")
    Image.new("RGB", (1, 2666)).save(folder / "b.png")  # one pixel is left of its width
    assert call(model_of("panoptic"), folder) == 1
    (line,) = (tmp_path / "out/missing.txt").read_text().splitlines()
    assert line.startswith(f"a.png\t{folder}/a.png: the image of 5000x1 pixels")
    assert "INPUT.MAX_SIZE_TEST" in line
    content = json.loads((tmp_path / "out/panoptic.json").read_text())
    assert len(content["images"]) == 5


@pytest.mark.slow
def test_unreadable_images_and_names_that_occur_twice(model_of, call, images, tmp_path, caplog):
    folder, out = tmp_path / "images", tmp_path / "out"
    first, second, *_ = sorted(images.iterdir())
    for place in ("a/x.jpg", "b/x.jpg", "b/x.jpeg"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(first, folder / place)
    Image.open(second).convert("L").save(folder / "b/grey.png")
    (folder / "a/broken.jpg").write_bytes(first.read_bytes()[:300])
    (folder / "a/photos.zip").touch()
    (folder / "a/text.png").write_text("no image")
    assert call(model_of("semantic"), folder) == 1
    found = {p.relative_to(out / "labels").as_posix() for p in (out / "labels").rglob("*.png")}
    assert found == {"a/x.png", "b/x.jpg.png", "b/x.jpeg.png", "b/grey.png"}
    missing = [line.split("\t") for line in (out / "missing.txt").read_text().splitlines()]
    assert [name for name, _ in missing] == ["a/broken.jpg", "a/text.png"]
    left_out = (out / "left_out.txt").read_text()
    assert left_out == "a/photos.zip\tno image, by its name (.zip)\n"
    assert all(str(folder / name) in why for name, why in missing)
    assert "2 images have no results" in caplog.text and "broken.jpg" in caplog.text
    # Once it is mended, the rest follows.
    shutil.copy(first, folder / "a/broken.jpg")
    (folder / "a/text.png").unlink()
    assert call(model_of("semantic"), folder) == 0
    assert not (out / "missing.txt").exists()
    assert len(json.loads((out / "labels.json").read_text())["images"]) == 5


def test_a_list(model_of, call, images, tmp_path):
    """Paths relative to the list; one that is not there is named, the others are done."""
    first, second, *_ = sorted(images.iterdir())
    shutil.copy(first, tmp_path / "near.jpg")
    listed = tmp_path / "images.txt"
    listed.write_text(f"near.jpg\n\n{second}\ngone.jpg\nnear.jpg\n")
    assert call(model_of("semantic"), listed) == 1
    missing = (tmp_path / "out/missing.txt").read_text()
    assert "gone.jpg: image not found" in missing and len(missing.splitlines()) == 1
    entries = json.loads((tmp_path / "out/labels.json").read_text())["images"]
    assert [Path(entry["file_name"]).name for entry in entries] == ["near.jpg", second.name]


@pytest.mark.slow
def test_a_video(model_of, call, images, tmp_path):
    video, out = tmp_path / "v.avi", tmp_path / "out"
    write_video(video, sorted(images.iterdir()))
    assert call(model_of("panoptic"), video) == 0
    assert sorted(p.name for p in (out / "panoptic").iterdir()) == [
        f"{number:06d}.png" for number in range(4)
    ]
    kept = pixels(out / "panoptic/000003.png")
    (out / "panoptic/000003.png").unlink()
    assert call(model_of("panoptic"), video) == 0  # the frame in its place, not the first one
    assert np.array_equal(pixels(out / "panoptic/000003.png"), kept)
    assert not np.array_equal(kept, pixels(out / "panoptic/000000.png"))


@pytest.mark.slow
def test_a_video_that_is_cut_off(model_of, call, images, tmp_path, caplog):
    video, out = tmp_path / "v.avi", tmp_path / "out"
    write_video(video, sorted(images.iterdir()) * 5)
    content = video.read_bytes()
    video.write_bytes(content[: len(content) // 2])
    assert call(model_of("semantic"), video) == 1
    done = len(list((out / "labels").iterdir()))
    assert 0 < done < 20
    assert len((out / "missing.txt").read_text().splitlines()) == 20 - done
    assert f"{video}: ends after" in caplog.text
