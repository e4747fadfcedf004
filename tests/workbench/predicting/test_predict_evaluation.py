"""tools/predict.py with the truth: the evaluation of what was predicted."""

import json
import shutil
from pathlib import Path

import pytest
from detectron2.data import DatasetCatalog

from ocr_panoptic.engine import Trainer, build_trained_model, complete_config, load_config
from ocr_panoptic.evaluation.instance_evaluator import PanopticInstanceEvaluator
from ocr_panoptic.workbench.predicting import folder, truth


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
            instances = PanopticInstanceEvaluator(truth.TRUTH, ("bbox", "segm"))
            instances.reset()
            instances.add_truth(numbers[item.file_name])
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
