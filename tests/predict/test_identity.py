"""A checkpoint knows the settings and the classes that it was trained with."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import ocr_panoptic
from ocr_panoptic.checkpoint.start import Start
from ocr_panoptic.cli import call
from ocr_panoptic.config.files import load_config, values_by_key
from ocr_panoptic.predict.identity import check_settings_of
from support.loaded_configs import load
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG, TINY_SEMANTIC, images_of
from train_net import Trainer, main, setup

KINDS = {"panoptic": ((), OCR_CONFIG), "semantic": (TINY_SEMANTIC, SEMANTIC_CONFIG)}


@pytest.fixture
def run(trained, tmp_path):
    """Return a function that gives the folder of a run, and KEY VALUE ... of its training."""

    def make(kind="panoptic"):
        keys, config = KINDS[kind]
        return tmp_path / "run", trained(*keys, config=config).opts

    return make


@pytest.fixture
def other_data(tiny_root, tmp_path):
    """Return a function that writes a data file with reversed classes, or a renamed class."""

    def make(kind, rename=False):
        raw, path = tiny_root / "tiny/raw", tmp_path / f"other_{kind}.yaml"
        suffix = "" if kind == "panoptic" else "_sem"
        content = yaml.safe_load((tiny_root / f"tiny/tiny{suffix}.yaml").read_text())
        content["name"] = f"other_{kind}"
        for split, paths in content[kind].items():
            paths |= {key: str(tiny_root / "tiny" / value) for key, value in paths.items()}
            if kind == "panoptic":
                truth = json.loads((raw / split / "panoptic.json").read_text())
                for category in truth["categories"]:
                    category["id"] = 1000 - category["id"]
                    if rename and category["name"] == "sky":
                        category["name"] = "heaven"
                for segment in (s for a in truth["annotations"] for s in a["segments_info"]):
                    segment["category_id"] = 1000 - segment["category_id"]
                paths["annotations"] = str(tmp_path / f"{split}.json")
                Path(paths["annotations"]).write_text(json.dumps(truth))
        if kind == "semantic":
            for label, entry in enumerate(content["classes"]):
                entry["labels"] = label
                if rename and entry["name"] == "sky":
                    entry["name"] = "heaven"
            content["classes"].reverse()
        path.write_text(yaml.safe_dump(content))
        return path

    return make


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_file_is_enough(kind, run, tiny_data, tmp_path, monkeypatch):
    """The test is in a folder with only this file, on a machine without the data."""
    folder, _ = run(kind)
    (image, *_) = images_of(tiny_data)
    expected = ocr_panoptic.load(folder).predict(image)
    names = {c["name"] for c in ocr_panoptic.load(folder)._known.categories}
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(folder / "model_final.pth", alone)
    shutil.copy(image, alone / "photo.jpg")
    shutil.rmtree(folder)
    monkeypatch.setenv("DETECTRON2_DATASETS", str(alone / "none"))
    monkeypatch.chdir(alone)
    model = ocr_panoptic.load("model_final.pth")
    found = model.predict("photo.jpg")
    assert np.array_equal(found.labels, expected.labels)
    assert np.array_equal(found.confidence, expected.confidence)
    assert {"sky", "grass"} <= set(model.classes)
    assert {c["name"] for c in model._known.categories} == names
    command = ["--weights", "model_final.pth", "--input", "photo.jpg", "--output", "out"]
    assert call("predict", [*command, "MODEL.DEVICE", "cpu"]) == 0
    listed = json.loads((alone / "out/coco.json").read_text())["categories"]
    assert {c["name"] for c in listed} >= {"sky", "grass"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_data_in_another_order_are_matched_by_name(kind, run, other_data, tmp_path):
    folder, _ = run(kind)
    expected = ocr_panoptic.evaluate(folder, output=tmp_path / "a", **{"MODEL.DEVICE": "cpu"})
    found = ocr_panoptic.evaluate(
        folder / "model_final.pth", data=other_data(kind), output=tmp_path / "b"
    )
    task = {"panoptic": "panoptic_seg", "semantic": "sem_seg"}[kind]
    # Compare by class, because the order in the dictionary does not count.
    assert found[task] == pytest.approx(expected[task], rel=1e-12, nan_ok=True)


def test_keys_that_an_older_checkpoint_does_not_know_had_their_defaults():
    cfg = load("Custom-PanopticSegmentation/panoptic_fpn_ocr_Lite0")
    settings = values_by_key(yaml.safe_load(cfg.dump()))
    check_settings_of(Start("new.pth", settings), cfg)
    assert settings.pop("MODEL.OCR.DOWNSAMPLE") == 2
    with pytest.raises(ValueError, match="old.pth(.|\n)*  MODEL.OCR.DOWNSAMPLE is 2, but was 1\n"):
        check_settings_of(Start("old.pth", settings), cfg)


RESIDUAL = ["MODEL.OCR.RESIDUAL", "True"]
RESIDUAL_FAULT = "MODEL.OCR.RESIDUAL is True, but was False"
OTHERWISE = {
    ("MODEL.OCR.RESIDUAL", True): RESIDUAL_FAULT,
    ("INPUT.FORMAT", "RGB"): "INPUT.FORMAT is RGB, but was BGR",
    ("MODEL.PIXEL_MEAN", (1.0, 2.0, 3.0)): r"MODEL.PIXEL_MEAN is \[1.0, 2.0, 3.0\]",
}


@pytest.mark.slow
def test_other_settings_are_refused(run, other_data, make_args, tmp_path, caplog):
    """Every use of the trained model refuses them; training from it only warns."""
    folder, opts = run()
    values = dict(zip(opts[::2], opts[1::2]))
    output = str(tmp_path / "out")
    for (key, value), message in OTHERWISE.items():
        with pytest.raises(ValueError, match=message):
            ocr_panoptic.load(folder, **{key: value})
    named = ["--weights", str(folder / "model_final.pth")]
    own = [word for key, value in values.items() for word in (key, value)]
    for command, words in {
        "evaluate": ["--config-file", str(OCR_CONFIG), *named, *own, "OUTPUT_DIR", output],
        "predict": [*named, "--input", str(tmp_path), "--output", output],
        "export": [*named, "--output", f"{output}.onnx"],
        "train": ["--config-file", str(OCR_CONFIG), "--resume", *own],
    }.items():
        with pytest.raises(ValueError, match=RESIDUAL_FAULT):
            call(command, [*words, *RESIDUAL])
    more = ["SOLVER.MAX_ITER", "4"]
    with pytest.raises(ValueError, match="other_p.* differ .new: heaven; missing: sky"):
        ocr_panoptic.evaluate(folder, data=other_data("panoptic", rename=True), output=output)
    with pytest.raises(ValueError, match="only in their order"):
        data = ["--data", str(other_data("panoptic"))]
        skip = ("DATASETS.TRAIN", "DATASETS.TEST")
        left = [word for key in values if key not in skip for word in (key, values[key])]
        call("train", ["--config-file", str(OCR_CONFIG), "--resume", *data, *left, *more])
    opts = [*opts, *RESIDUAL, "MODEL.WEIGHTS", folder / "model_final.pth", "OUTPUT_DIR", output]
    Trainer(setup(make_args(*opts))[0]).resume_or_load(False)
    assert RESIDUAL_FAULT in caplog.text


@pytest.mark.slow
def test_weights_without_their_settings(run, tmp_path):
    folder, _ = run()
    torch.save({"model": torch.load(folder / "model_final.pth")["model"]}, tmp_path / "bare.pth")
    with pytest.raises(ValueError, match="bare.pth does not contain the settings"):
        ocr_panoptic.load(tmp_path / "bare.pth")


@pytest.mark.slow
def test_a_training_is_not_overwritten(run, make_args):
    folder, _ = run()
    before = (folder / "model_final.pth").read_bytes()
    with pytest.raises(ValueError, match="has checkpoints of another training.*--overwrite"):
        main(make_args())
    assert (folder / "model_final.pth").read_bytes() == before
    main(make_args("SEED", 5, flags=("--overwrite",)))
    assert (folder / "model_final.pth").read_bytes() != before


class Bomb:
    def __reduce__(self):
        return open, ("exploded", "w")


def test_a_strangers_config_cannot_allow_pickles(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(
        f"_BASE_: {OCR_CONFIG}\nMODEL: {{TRUST_PICKLE: true, WEIGHTS: bomb.pth}}\n"
    )
    torch.save({"model": Bomb()}, "bomb.pth")
    config = tmp_path / "run/config.yaml"
    with pytest.raises(ValueError, match="bomb.pth is a pickle that wants to run"):
        ocr_panoptic.load(config)
    assert not Path("exploded").exists()
    assert "Ignored MODEL.TRUST_PICKLE" in caplog.text


def test_weights_given_as_a_config_are_refused(tmp_path):
    (tmp_path / "model.pth").touch()
    with pytest.raises(ValueError, match="is a weights file, not a config. Give it as the weights"):
        load_config(str(tmp_path / "model.pth"), [])


@pytest.mark.slow
def test_rows_of_classifiers_follow_their_class(run, other_data, make_args, tmp_path):
    folder, _ = run("semantic")
    rows = torch.load(folder / "model_final.pth")["model"]["sem_seg_head.refined_predictor.weight"]
    for by_class in (True, False):
        keys, config = KINDS["semantic"]
        data = ("DATASETS.FILES", f"('{other_data('semantic')}',)", "DATASETS.TEST", "()")
        args = make_args(
            *(*keys, *data, "DATASETS.TRAIN", "('other_semantic_train',)"),
            *("MODEL.WEIGHTS", folder / "model_final.pth", "MODEL.WEIGHTS_BY_CLASS", by_class),
            *("OUTPUT_DIR", tmp_path / "other"),
            config=config,
        )
        trainer = Trainer(setup(args)[0])
        trainer.resume_or_load(False)
        found = trainer.model.sem_seg_head.refined_predictor.weight.detach()
        assert torch.equal(found, rows.flip(0) if by_class else rows)
