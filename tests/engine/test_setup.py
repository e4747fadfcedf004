"""A user's mistakes are reported before the training starts."""

import contextlib
import shutil

import pytest
import torch
import yaml
from detectron2.config import CfgNode, get_cfg

from ocr_panoptic.cli.arguments import RunOptions
from ocr_panoptic.cli.train import argument_parser
from ocr_panoptic.config import add_ocr_config
from ocr_panoptic.config.files import load_config, values_by_key
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.engine.setup import rank_of_process
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.workbench.checking.run_check import check_solver
from support.tiny_runs import CONFIGS, OCR_CONFIG, TINY
from train_net import main, setup

TINY_NAMES = ["DATASETS.TRAIN", "('tiny_train',)", "DATASETS.TEST", "('tiny_val',)"]


def complete(*opts: str, config=OCR_CONFIG, training: bool = True) -> CfgNode:
    cfg = load_config(str(config), [*TINY_NAMES, *opts])
    complete_config(cfg, training=training)
    return cfg


@pytest.mark.slow
def test_faults_are_reported_before_the_training(tiny_data, make_args, tmp_path, monkeypatch):
    """All faults are reported: missing folders, and splits that no file describes."""
    shutil.copytree(tiny_data / "tiny", tmp_path / "mine")
    for path in list((tmp_path / "mine/raw").glob("*/images/*_00001.jpg")):
        path.unlink()
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "nowhere"))
    data = ["DATASETS.FILES", f"('{tmp_path}/mine/tiny.yaml',)"]
    args = make_args(*data, "OUTPUT_DIR", str(tmp_path / "run"))
    with pytest.raises(DataFaults, match="2 faults in the data") as error:
        main(args)
    assert ["train_00001" in error.value.faults[0], "val_00001" in error.value.faults[1]] == [1, 1]
    shutil.rmtree(tmp_path / "mine/raw/val/images")
    with pytest.raises(FileNotFoundError, match="mine/raw/val/images: folder of images not found"):
        main(args)
    (tmp_path / "city.yaml").write_text(
        "name: city\npanoptic:\n  other: {images: a, annotations: a.json, segments: b}\n"
    )
    for flags, split in (([], "train"), (["--eval-only"], "val")):
        words = ["--config-file", str(OCR_CONFIG), "--data", str(tmp_path / "city.yaml"), *flags]
        words += ["OUTPUT_DIR", str(tmp_path / "run")]
        with pytest.raises(ValueError, match=rf"city.yaml: found no split called {split}, and"):
            main(argument_parser().parse_args(words))


def test_data_files_from_the_command_line(tiny_data, make_args, tmp_path, monkeypatch):
    """The run's config works without --data, also from another folder."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tiny_data)
    flags = ["--config-file", str(OCR_CONFIG), "--data", "tiny/tiny.yaml"]
    opts = ["OUTPUT_DIR", str(tmp_path / "run"), *map(str, TINY)]
    args = argument_parser().parse_args([*flags, *opts])
    assert args.data == ["tiny/tiny.yaml"] and args.opts[0] == "OUTPUT_DIR"
    cfg, _ = setup(args)
    assert cfg.DATASETS.TRAIN == ("tiny_train",) and cfg.DATASETS.TEST == ("tiny_val",)
    assert cfg.MODEL.ROI_HEADS.NUM_CLASSES == 4
    (tmp_path / "run/config.yaml").write_text(cfg.dump())
    monkeypatch.chdir("/")
    again = load_config(str(tmp_path / "run/config.yaml"), [])
    complete_config(again, training=True)
    assert (str(tiny_data / "tiny/tiny.yaml"),) == again.DATASETS.FILES


@pytest.mark.slow
def test_config_of_a_run_works_on_another_machine(tiny_data, trained, tmp_path, monkeypatch):
    """It names the device of the run for Detectron2; this project's commands choose anew."""
    trained()
    run, key = tmp_path / "run", "MODEL.DEVICE"
    cfg = get_cfg()
    add_ocr_config(cfg)
    cfg.merge_from_file(str(run / "config.yaml"))
    assert (cfg.MODEL.DEVICE, cfg.MODEL.OCR.NORM) == ("cpu", "SyncBN")
    assert cfg.MODEL.ROI_HEADS.NUM_CLASSES == 4  # the data's number is in the file
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for config in (run, run / "config.yaml", run / "inference/tiny_val/config.yaml"):
        assert load_config(str(config)).MODEL.DEVICE == "cuda", config
    assert load_config(str(run), {key: "cpu"}).MODEL.DEVICE == "cpu"
    copied = tmp_path / "mine.yaml"
    copied.write_text((run / "config.yaml").read_text())
    assert load_config(str(copied)).MODEL.DEVICE == "cuda"
    for device, found in (("cpu", "cpu"), ("auto", "cuda")):  # earlier versions wrote auto
        copied.write_text(f"MODEL: {{DEVICE: {device}}}")
        assert found == load_config(str(copied)).MODEL.DEVICE
    settings = torch.load(run / "model_final.pth", weights_only=True)["identity"]["settings"]
    settings = values_by_key(yaml.safe_load(settings))
    assert settings[key] == "cpu" and load_config("", (), settings).MODEL.DEVICE == "cuda"


def use_gpus(monkeypatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize("head, found, of_coco", [("ROI_HEADS", 4, 80), ("SEM_SEG_HEAD", 6, 54)])
def test_class_counts_come_from_the_data(tiny_data, head, found, of_coco):
    """In an evaluation, the training's data do not matter; COCO's counts need no files."""
    assert found == complete().MODEL[head].NUM_CLASSES
    assert found == complete(f"MODEL.{head}.NUM_CLASSES", str(found)).MODEL[head].NUM_CLASSES
    opts = ["DATASETS.TRAIN", "('moved_away',)", "INPUT.MASK_FORMAT", "polygon"]
    assert found == complete(*opts, training=False).MODEL[head].NUM_CLASSES
    cfg = load_config(str(CONFIGS / "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x.yaml"), [])
    complete_config(cfg)
    assert of_coco == cfg.MODEL[head].NUM_CLASSES


def test_the_device_follows_the_machine(tiny_data, monkeypatch):
    for gpus, device in ((2, "cuda"), (0, "cpu")):
        use_gpus(monkeypatch, gpus)
        assert device == complete().MODEL.DEVICE
        assert complete("MODEL.DEVICE", "cpu").MODEL.DEVICE == "cpu"
    cfg = load_config(str(OCR_CONFIG), ["DATASETS.TEST", "()"])
    cfg.MODEL.DEVICE = "auto"  # in a script
    complete_config(cfg)
    assert cfg.MODEL.DEVICE == "cpu"
    use_gpus(monkeypatch, 2)
    assert complete("MODEL.DEVICE", "cuda:1").MODEL.DEVICE == "cuda:1"
    with pytest.raises(ValueError, match="MODEL.DEVICE is cuda:2, but torch sees 2 GPU"):
        complete("MODEL.DEVICE", "cuda:2")


@pytest.mark.parametrize(
    "reference, batch, steps, fault",
    [
        (0, 1, 1, "ACCUMULATION_STEPS"),
        (1, 1, 1, ""),  # the batch is scaled to 2 images
        (4, 4, 2, "ACCUMULATION_STEPS"),  # 2 images would leave parts empty
    ],
)
def test_batch_of_two_processes(reference, batch, steps, fault):
    cfg = load_config(str(OCR_CONFIG), ["MODEL.DEVICE", "cpu"])
    cfg.SOLVER.update(REFERENCE_WORLD_SIZE=reference, IMS_PER_BATCH=batch, ACCUMULATION_STEPS=steps)
    with pytest.raises(ValueError, match=fault) if fault else contextlib.nullcontext():
        check_solver(cfg, 2)


def test_only_torchrun_numbers_the_processes(monkeypatch):
    """A cluster's launcher may set the same variables for a program of one process."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    assert (RunOptions(num_machines=2).processes(), rank_of_process()) == (2, 0)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert (RunOptions().processes(), rank_of_process()) == (4, 1)
