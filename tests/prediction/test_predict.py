"""tools/predict.py from end to end."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog, Metadata, MetadataCatalog
from detectron2.data.detection_utils import read_image
from panopticapi.evaluation import pq_compute_single_core
from panopticapi.utils import rgb2id
from PIL import Image

from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.data_file import PanopticSplit, write_data_file
from ocr_panoptic.engine import Trainer, build_trained_model, complete_config, load_config
from ocr_panoptic.engine.single_image import model_input
from ocr_panoptic.evaluation.instance_evaluator import PanopticInstances
from ocr_panoptic.formats.segment_runs import segment_statistics
from ocr_panoptic.modeling import panoptic_augmentation
from ocr_panoptic.prediction import folder, inputs, memory, outputs, rows, run, truth
from ocr_panoptic.visualization.overlays import draw_segments

TILES = (
    *("TEST.SLIDING_WINDOW.SIZE", "[40, 40]", "TEST.SLIDING_WINDOW.STRIDE", "[24, 30]"),
    *("INPUT.MIN_SIZE_TEST", 0),
)


def outputs_of(model: list[str]) -> Callable[[Path], dict]:
    """Return a function from an image to what the model itself gives."""
    cfg = load_config(model[1], [*model[4:], "MODEL.WEIGHTS", model[3]])
    complete_config(cfg)
    network = build_trained_model(cfg)

    def output(path: Path) -> dict:
        with torch.inference_mode():
            return network([model_input(cfg, read_image(path, cfg.INPUT.FORMAT))])[0]

    return output


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


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


def evaluation(folder: Path) -> dict:
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics.pop("run")
    return metrics


def described(kind: str, images: Path) -> Path:
    """Return the data file that has these images and others."""
    return images.parents[2] / ("tiny.yaml" if kind == "panoptic" else "tiny_sem.yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "is_described"), [("panoptic", False), ("panoptic", True), ("semantic", True)]
)
def test_evaluation_equals_that_of_the_data_set(
    model_of, call, images, tmp_path, kind, is_described, clean_catalog
):
    """Metrics are equal to the last digit; the results come from files in between."""
    model = model_of(kind)
    truth = described(kind, images) if is_described else images.parent / "panoptic.json"
    assert call(model, images, "--eval", truth, "--labels", "dataset") == 0
    cfg = load_config(model[1], [*model[4:], "MODEL.WEIGHTS", model[3]])
    complete_config(cfg)
    cfg.OUTPUT_DIR = str(tmp_path / "run")
    Trainer.test(cfg, build_trained_model(cfg))
    expected = evaluation(Path(cfg.OUTPUT_DIR) / "inference" / cfg.DATASETS.TEST[0])
    assert expected["sem_seg"].pop("ECE") > 0  # the files have no probabilities
    assert evaluation(tmp_path / "out/evaluation") == expected
    assert expected["sem_seg"]["mIoU"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_ap_is_of_the_images(model_of, call, images, tmp_path, clean_catalog, monkeypatch, count):
    """Instances as in the truth have an AP of 100, whatever else the truth has: of a list, and of a
    folder by a relative path."""
    monkeypatch.chdir(images.parent)
    names = sorted(file.name for file in images.iterdir())
    source = images.name
    if count < len(names):
        source = tmp_path / "some.txt"
        source.write_text("".join(f"{images / name}\n" for name in names[:count]))

    def as_in_the_truth(items, places):
        true = DatasetCatalog.get(truth.TRUTH)
        numbers = {Path(r["file_name"]).name: r["image_id"] for r in true}
        for item, record in folder.read_records(items, places):
            instances = PanopticInstances(MetadataCatalog.get(truth.TRUTH))
            instances.add(numbers[item.file_name])
            own = instances.gathered()["annotations"]
            own = [{**annotation, "score": 1.0} for annotation in own if not annotation["iscrowd"]]
            yield item, {**record, "instances": own}

    monkeypatch.setattr(truth, "read_records", as_in_the_truth)
    assert call(model_of("panoptic"), source, "--eval", "panoptic.json") == 0
    assert evaluation(tmp_path / "out/evaluation")["segm"]["AP"] == pytest.approx(100)
    assert len(names) == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_evaluation_without_images_that_are_broken_or_absent(
    model_of, call, images, tmp_path, kind, clean_catalog, caplog
):
    """The others are predicted and compared, as if the truth had only them."""
    model, few = model_of(kind), tmp_path / "images"
    truth = images.parent / ("panoptic.json" if kind == "panoptic" else "semantic")
    shutil.copytree(images, few)
    gone, broken, *good = sorted(few.iterdir())
    gone.unlink()
    broken.write_bytes(broken.read_bytes()[:900])
    assert call(model, few, "--eval", truth) == 1
    assert [*(tmp_path / "out/labels").iterdir()] and len(good) == 2
    (line,) = (tmp_path / "out/missing.txt").read_text().splitlines()
    assert "is broken or truncated" in line
    found = json.loads((tmp_path / "out/evaluation/metrics.json").read_text())
    assert found["run"]["images"] == 2
    assert {Path(name).stem for name in found["run"]["left_out"]} == {gone.stem, broken.stem}
    assert "2 images of the truth have no result and are left out" in caplog.text

    shutil.copytree(images.parent, tmp_path / "part")
    for path in (gone, broken):
        (tmp_path / f"part/semantic/{path.stem}.png").unlink()
        (tmp_path / f"part/images/{path.name}").unlink()
    content = json.loads(truth.read_text()) if kind == "panoptic" else None
    if content:
        names = {path.name for path in good}
        content["images"] = [i for i in content["images"] if i["file_name"] in names]
        ids = {image["id"] for image in content["images"]}
        content["annotations"] = [a for a in content["annotations"] if a["image_id"] in ids]
        (tmp_path / "part/panoptic.json").write_text(json.dumps(content))
    truth = tmp_path / "part" / truth.name
    assert call(model, tmp_path / "part/images", "--eval", truth, output="second") == 0
    expected = evaluation(tmp_path / "second/evaluation")
    assert evaluation(tmp_path / "out/evaluation") == expected


@pytest.mark.slow
def test_a_broken_truth_stops_the_evaluation_alone(model_of, call, images, tmp_path):
    shutil.copytree(images.parent, tmp_path / "data")
    (png, *_) = sorted((tmp_path / "data/panoptic").iterdir())
    png.write_text("no PNG")
    model, truth = model_of("panoptic"), tmp_path / "data/panoptic.json"
    with pytest.raises(ValueError, match=png.name):
        call(model, tmp_path / "data/images", "--eval", truth)
    assert len(json.loads((tmp_path / "out/panoptic.json").read_text())["images"]) == 4
    assert not (tmp_path / "out/missing.txt").exists()


def test_a_data_file_of_other_data(model_of, call, images, tmp_path):
    model, file = model_of("semantic"), described("semantic", images)
    with pytest.raises(ValueError, match="describes panoptic data, but the model is semantic"):
        call(model, images, "--eval", described("panoptic", images))
    (tmp_path / "some").mkdir()
    shutil.copy(sorted(images.iterdir())[0], tmp_path / "some")
    with pytest.raises(ValueError, match=r"no split has its images in --input .*val: .*images"):
        call(model, tmp_path / "some", "--eval", file)
    other = images.parents[2] / "other.yaml"
    other.write_text(file.read_text().replace("name: water", "name: lava"))
    with pytest.raises(ValueError, match=r"has other classes than .*'lava'.* and .*'water'"):
        call(model, images, "--eval", other)
    other.write_text(file.read_text() + "ignore: 254\n")
    with pytest.raises(ValueError, match=r"has other classes than .* 254: 255"):
        call(model, images, "--eval", other)
    other.unlink()


def test_a_truth_of_two_images(model_of, call, images, tmp_path):
    first, *_ = sorted(images.iterdir())
    (tmp_path / "images").mkdir()
    for suffix in (".jpg", ".png"):
        shutil.copy(first, tmp_path / f"images/{first.stem}{suffix}")
    with pytest.raises(ValueError, match="is the truth of several images"):
        call(model_of("semantic"), tmp_path / "images", "--eval", images.parent / "semantic")


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


def write_video(path: Path, images: list[Path]) -> None:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 64))
    for image in images:
        writer.write(cv2.imread(str(image)))
    writer.release()


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


@pytest.mark.slow
def test_windows_of_a_large_image(model_of, call, images, tmp_path):
    """Written row by row, what TEST.SLIDING_WINDOW gives."""
    model = model_of(
        "semantic",
        *("TEST.SLIDING_WINDOW.SIZE", "[40, 40]", "TEST.SLIDING_WINDOW.STRIDE", "[24, 30]"),
    )
    assert call(model, images, "--overlays", "--max-pixels", 100) == 0
    assert call(model, images, "--overlays", output="whole") == 0
    for path in (tmp_path / "whole/overlays").iterdir():
        assert path.read_bytes() == (tmp_path / "out/overlays" / path.name).read_bytes()
    for path in (tmp_path / "whole").rglob("*.png"):
        other = tmp_path / "out" / path.relative_to(tmp_path / "whole")
        assert np.array_equal(pixels(path), pixels(other)) and len(np.unique(pixels(path))) > 1
    texts = [(tmp_path / name / "labels.json").read_text() for name in ("out", "whole")]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_tile_of_a_panoptic_model(model_of, call, images, tmp_path):
    """A tile that holds all of the image gives the files of the whole image. Segments are numbered
    in the same order, of instances and then by class."""
    size = "TEST.SLIDING_WINDOW.SIZE", "[512, 512]", "TEST.SLIDING_WINDOW.STRIDE", "[256, 256]"
    model = model_of("panoptic", *size, "INPUT.MIN_SIZE_TEST", 0)
    assert call(model, images, "--overlays", "--max-pixels", 1000) == 0
    assert call(model, images, "--overlays", output="whole") == 0
    for path in (p for p in (tmp_path / "whole").rglob("*.*g") if p.suffix in (".png", ".jpg")):
        other = tmp_path / "out" / path.relative_to(tmp_path / "whole")
        assert np.array_equal(pixels(path), pixels(other)) and len(np.unique(pixels(path))) > 1
    for name in ("panoptic.json", "instances.json"):
        found, expected = (json.loads((tmp_path / f / name).read_text()) for f in ("out", "whole"))
        assert found == expected


@pytest.mark.slow
def test_tiles_of_a_panoptic_model(model_of, call, images, tmp_path, caplog):
    """Files are consistent: areas and boxes are those of the PNG, and an evaluation reads
    it."""
    truth = images.parent / "panoptic.json"
    model = model_of("panoptic", *TILES)
    assert call(model, images, "--overlays", "--max-pixels", 100, "--eval", truth) == 0
    for annotation in json.loads((tmp_path / "out/panoptic.json").read_text())["annotations"]:
        ids = rgb2id(pixels(tmp_path / "out/panoptic" / annotation["file_name"]))
        segments = {s["id"]: (s["area"], s["bbox"]) for s in annotation["segments_info"]}
        assert segments == segment_statistics(ids)
    assert "lie in no tile of TEST.SLIDING_WINDOW as a whole" in caplog.text
    assert not [*(tmp_path / "out").rglob(".*.tmp")]


def test_overlays_of_larger_images_are_smaller(monkeypatch):
    """Every third pixel of 20x31, whatever the bands, outlined as they are then."""
    monkeypatch.setattr(outputs, "OVERLAY_PIXELS", 70)
    monkeypatch.setattr(outputs, "ROWS_AT_ONCE", 2)
    random = np.random.default_rng(0)
    rgb = random.integers(0, 256, (20, 31, 3), dtype=np.uint8)
    labels = random.integers(0, 2, (20, 31), dtype=np.uint8)
    colors = {0: (200, 0, 0), 1: (0, 0, 200)}
    overlay = outputs.Overlay((20, 31))
    for band in (slice(0, 1), slice(1, 8), slice(8, 9), slice(9, 20)):
        overlay.add(rgb[band], labels[band])
    assert np.array_equal(
        overlay.draw(colors), draw_segments(rgb[::3, ::3], labels[::3, ::3], colors)
    )


@pytest.mark.slow
def test_regions_of_the_whole_image(model_of, call, images, tmp_path, monkeypatch):
    """Tiles that hold all of the image: nothing but rounding differs. Without pyvips an image is
    decoded once for both passes."""
    monkeypatch.setitem(sys.modules, "pyvips", None)
    read, seen = rows.read_picture, []
    monkeypatch.setattr(rows, "read_picture", lambda *args: seen.append(args) or read(*args))
    model = model_of(
        "semantic",
        *("TEST.SLIDING_WINDOW.SIZE", "[192, 192]", "TEST.SLIDING_WINDOW.STRIDE", "[64, 64]"),
    )
    assert call(model, images, "--whole-regions") == 0
    assert len(seen) == 4
    assert call(model_of("semantic"), images, output="whole") == 0
    for path in (tmp_path / "whole/confidence").iterdir():
        other = pixels(tmp_path / "out/confidence" / path.name)
        assert np.abs(pixels(path).astype(int) - other).max() <= 1


class TestRefusals:
    """Messages are one line that names the file and what to do."""

    @pytest.mark.slow
    def test_another_model_in_the_folder(self, model_of, call, images, tmp_path):
        assert call(model_of("semantic"), images) == 0
        with pytest.raises(ValueError, match="of another input, model or other options.*TEST.FLIP"):
            call(model_of("semantic", "TEST.FLIP", True), images)
        with pytest.raises(ValueError, match="weights_file_sha256"):
            call(model_of("panoptic"), images)
        with pytest.raises(ValueError, match="labels 'train', now 'dataset'"):
            call(model_of("semantic"), images, "--labels", "dataset")

    @pytest.mark.slow
    def test_another_input(self, model_of, call, images, tmp_path, caplog):
        """Results of another input would take the place of those that are there. More images in the
        same folder are added, and those that are gone are named."""
        folder, other = tmp_path / "images", tmp_path / "other"
        first, second, third, _ = sorted(images.iterdir())
        folder.mkdir(), other.mkdir()
        shutil.copy2(first, folder / "a.jpg"), shutil.copy2(first, other / "a.jpg")
        shutil.copy2(second, folder / "b.jpg")
        assert call(model_of("semantic"), folder) == 0
        before = (tmp_path / "out/labels.json").read_text()
        for source in (other, folder / "a.jpg"):
            with pytest.raises(ValueError, match=f"input '{folder}', now '{source}'"):
                call(model_of("semantic"), source)
        assert (tmp_path / "out/labels.json").read_text() == before
        (folder / "b.jpg").rename(tmp_path / "b.jpg")
        shutil.copy(third, folder / "c.jpg")
        assert call(model_of("semantic"), folder) == 0
        entries = json.loads((tmp_path / "out/labels.json").read_text())["images"]
        assert [entry["file_name"] for entry in entries] == ["a.jpg", "c.jpg"]
        assert "1 images that were predicted before are no longer in the input: b" in caplog.text

    @pytest.mark.slow
    def test_other_classes(self, model_of, call, images, monkeypatch):
        """Classes of the data set are compared, which neither config nor weights hold."""
        model = model_of("semantic")
        assert call(model, images) == 0
        metadata = MetadataCatalog.get("tiny_sem_val").as_dict()
        metadata["stuff_classes"] = ["globe", *metadata["stuff_classes"][1:]]
        monkeypatch.setattr(run, "class_metadata", lambda cfg: Metadata(**metadata))
        with pytest.raises(ValueError, match="classes_sha256"):
            call(model, images)

    @pytest.mark.slow
    def test_weights_of_another_model(self, model_of, call, images, tmp_path):
        """The folder can be used afterwards."""
        model, other = model_of("semantic"), model_of("panoptic")
        with pytest.raises(ValueError, match="do not fit the model"):
            call([*model[:3], other[3], *model[4:]], images)
        assert call(model, images) == 0

    def test_other_files_in_the_folder(self, model_of, call, images, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out/thesis.tex").write_text("")
        with pytest.raises(ValueError, match="out: holds other files.*empty folder"):
            call(model_of("semantic"), images)
        assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.tex"]

    def test_inputs(self, model_of, call, images, tmp_path):
        model = model_of("semantic")
        (tmp_path / "none").mkdir()
        (tmp_path / "empty.txt").write_text("\n")
        (tmp_path / "x.pdf").write_text("")
        (tmp_path / "broken.avi").write_bytes(b"RIFF")
        for name, kind, message in (
            ("none", FileNotFoundError, "holds no image"),
            ("gone", FileNotFoundError, "gone: no such folder, list, image or video"),
            ("empty.txt", FileNotFoundError, "the list names no image"),
            ("x.pdf", ValueError, r"x.pdf: ends in .pdf; expected"),
            ("broken.avi", ValueError, "cannot open .*broken.avi"),
        ):
            with pytest.raises(kind, match=message):
                call(model, tmp_path / name)
        assert not (tmp_path / "out").exists()

    @pytest.mark.slow
    def test_truth(self, model_of, call, images, tmp_path):
        with pytest.raises(FileNotFoundError, match="a folder of label PNGs"):
            call(model_of("semantic"), images, "--eval", images.parent / "panoptic.json")
        content = json.loads((images.parent / "panoptic.json").read_text())
        content["categories"][0]["name"] = "globe"
        shutil.copytree(images.parent / "panoptic", tmp_path / "other")
        (tmp_path / "other.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match="other categories than tiny_val.*globe"):
            call(model_of("panoptic"), images, "--eval", tmp_path / "other.json", output="p")

    @pytest.mark.parametrize(
        "opts, message",
        [
            (("INPUT.MIN_SIZE_TEST", 0), "TEST.SLIDING_WINDOW is empty; set SIZE"),
            ((*TILES, "TEST.SLIDING_WINDOW.STRIDE", "[40, 40]"), "tiles overlap"),
            ((*TILES, "INPUT.MIN_SIZE_TEST", 32), "seen at its own size"),
        ],
    )
    def test_a_panoptic_model_and_a_large_image(
        self, model_of, call, images, tmp_path, opts, message
    ):
        assert call(model_of("panoptic", *opts), images, "--max-pixels", 1000) == 1
        why = (tmp_path / "out/missing.txt").read_text().splitlines()[0]
        assert "image is too large to be seen at once: --max-pixels is 1000" in why
        assert message in why

    @pytest.mark.slow
    def test_a_semantic_model_without_windows_and_a_large_image(
        self, model_of, call, images, tmp_path, monkeypatch
    ):
        """The limit is that of the memory, and said."""
        monkeypatch.setattr(memory, "free_memory", lambda: 2**20)
        assert call(model_of("semantic"), images) == 1
        why = (tmp_path / "out/missing.txt").read_text().splitlines()[0]
        assert "75% of the free memory, 0.0 GiB, are for 0.0 megapixels" in why
        assert "TEST.SLIDING_WINDOW is empty; set SIZE" in why

    @pytest.mark.parametrize("limit", ["-5", "0", "many"])
    def test_a_number_of_pixels(self, predict, limit, capsys):
        with pytest.raises(SystemExit):
            predict(["--max-pixels", limit])
        assert "argument --max-pixels: " in capsys.readouterr().err

    def test_a_panoptic_model_and_whole_regions(self, model_of, call, images, tmp_path):
        with pytest.raises(ValueError, match="--whole-regions: is of a semantic model"):
            call(model_of("panoptic"), images, "--whole-regions")
        assert not (tmp_path / "out").exists()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "opts, message",
        [
            ((), "--whole-regions: TEST.SLIDING_WINDOW is empty"),
            (("INPUT.MIN_SIZE_TEST", 32), "--whole-regions: .*INPUT.MIN_SIZE_TEST is 32"),
        ],
    )
    def test_whole_regions_are_refused_once(self, model_of, call, images, opts, message):
        with pytest.raises(ValueError, match=message):
            call(model_of("semantic", *opts), images, "--whole-regions")

    @pytest.mark.parametrize(
        "error, message",
        [
            (OSError(5, "Input/output error"), "^.Errno 5. Input/output error$"),  # not of writing
            (ValueError("a defect"), "^a defect$"),  # no reason why an image has no results
        ],
    )
    def test_an_error_that_is_raised_as_it_is(
        self, model_of, call, images, monkeypatch, error, message
    ):
        def failing(*args):
            raise error

        monkeypatch.setattr(run.Predictor, "__call__", failing)
        with pytest.raises(type(error), match=message):
            call(model_of("semantic"), images)

    @pytest.mark.slow
    def test_a_full_disk(self, model_of, call, images, tmp_path, monkeypatch):
        """Files are whole, the list says what is missing, and a repetition goes on."""
        write, calls = outputs.write_label_png, []

        def failing(path, labels):
            calls.append(path)
            if len(calls) > 5:
                raise OSError(28, "No space left on device")
            write(path, labels)

        monkeypatch.setattr(outputs, "write_label_png", failing)
        with pytest.raises(OSError, match="No space left.*missing.txt names the others.*goes on"):
            call(model_of("semantic"), images)
        done = {p.stem for p in (tmp_path / "out/confidence").iterdir()}
        missing = (tmp_path / "out/missing.txt").read_text().splitlines()
        assert 0 < len(missing) < 4
        assert not done & {line.split(".")[0] for line in missing}
        monkeypatch.undo()
        assert call(model_of("semantic"), images) == 0
