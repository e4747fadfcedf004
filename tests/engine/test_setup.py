"""Mistakes of a user that are told before training starts."""

import contextlib
import errno
import math
import re
import shutil
import sys

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from PIL import Image

from ocr_panoptic.data.data_file import SemanticSplit, write_data_file
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.engine import Trainer, complete_config, load_config, setup
from ocr_panoptic.engine.run_info import portable
from ocr_panoptic.engine.schedule import scaled
from ocr_panoptic.engine.setup import check_solver
from support.tiny_runs import (
    CONFIGS,
    OCR_CONFIG,
    PLAIN_CONFIG,
    SEMANTIC_CONFIG,
    TINY,
    TINY_SEMANTIC,
)
from train_net import argument_parser

TINY_NAMES = ["DATASETS.TRAIN", "('tiny_train',)", "DATASETS.TEST", "('tiny_val',)"]


def complete(*opts: str, config=OCR_CONFIG, training: bool = True) -> CfgNode:
    cfg = load_config(str(config), [*TINY_NAMES, *opts])
    complete_config(cfg, training=training)
    return cfg


def test_class_counts_come_from_the_data(tiny_data):
    cfg = complete()
    metadata = MetadataCatalog.get("tiny_train")
    assert cfg.MODEL.ROI_HEADS.NUM_CLASSES == len(metadata.thing_classes) == 4
    assert cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES == len(metadata.stuff_classes) == 6


@pytest.mark.parametrize("head, found", [("ROI_HEADS", 4), ("SEM_SEG_HEAD", 6)])
def test_other_class_count_than_the_data(tiny_data, head, found):
    key = f"MODEL.{head}.NUM_CLASSES"
    with pytest.raises(ValueError, match=f"{key} is 80, but tiny_train has {found}"):
        complete(key, "80")
    assert found == complete(key, str(found)).MODEL[head].NUM_CLASSES


def test_coco_config_has_cocos_counts_and_needs_no_files():
    cfg = load_config(str(CONFIGS / "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x.yaml"), [])
    complete_config(cfg)
    assert (cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES) == (80, 54)


def test_missing_validation_data_are_told_before_the_training(
    tiny_data, make_args, tmp_path, monkeypatch
):
    (tmp_path / "tiny/raw/val").mkdir(parents=True)
    for part in ("tiny.yaml", "raw/train", "raw/val/panoptic", "raw/val/panoptic.json"):
        (tmp_path / "tiny" / part).symlink_to(tiny_data / "tiny" / part)
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="tiny/raw/val/images: folder of images not found"):
        setup(make_args())


@pytest.mark.slow
def test_faults_are_told_before_the_training(tiny_data, make_args, tmp_path, monkeypatch):
    """All of them, and nothing is written beside the data."""
    shutil.copytree(tiny_data / "tiny", tmp_path / "mine")
    for path in list((tmp_path / "mine/raw").glob("*/images/*_00001.jpg")):
        path.unlink()
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "nowhere"))
    args = make_args("DATASETS.FILES", f"('{tmp_path}/mine/tiny.yaml',)")
    with pytest.raises(DataFaults, match="2 faults in the data") as error:
        setup(args)
    assert ["train_00001" in error.value.faults[0], "val_00001" in error.value.faults[1]] == [1, 1]


@pytest.mark.parametrize("flags, split", [([], "train"), (["--eval-only"], "val")])
def test_a_data_file_without_the_split(tmp_path, monkeypatch, flags, split):
    monkeypatch.chdir(tmp_path)
    paths = "{images: images, annotations: a.json, segments: pngs}"
    (tmp_path / "city.yaml").write_text(f"name: city\npanoptic:\n  other: {paths}\n")
    words = ["--config-file", str(OCR_CONFIG), "--data", "city.yaml", *flags]
    with pytest.raises(ValueError, match=rf"city\.yaml: describes no split called {split}, so"):
        setup(argument_parser().parse_args(words))


def test_data_files_from_the_command_line(tiny_data, make_args, tmp_path, monkeypatch):
    """Read once more from the config that the run leaves, without --data and from elsewhere."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tiny_data)
    flags = ["--config-file", str(OCR_CONFIG), "--data", "tiny/tiny.yaml"]
    opts = ["OUTPUT_DIR", str(tmp_path / "run"), *map(str, TINY)]
    args = argument_parser().parse_args([*flags, *opts])
    assert args.data == ["tiny/tiny.yaml"] and args.opts[0] == "OUTPUT_DIR"
    cfg, written = setup(args)
    assert cfg.DATASETS.TRAIN == ("tiny_train",) and cfg.DATASETS.TEST == ("tiny_val",)
    assert cfg.MODEL.ROI_HEADS.NUM_CLASSES == 4
    (tmp_path / "run/config.yaml").write_text(written)
    monkeypatch.chdir("/")
    again = load_config(str(tmp_path / "run/config.yaml"), [])
    complete_config(again, training=True)
    assert (str(tiny_data / "tiny/tiny.yaml"),) == again.DATASETS.FILES


@pytest.mark.parametrize(
    "split, name, fault",
    [
        ("TEST", "coco_2017_val", "coco_2017_val is not a data set that Panoptic-FPN"),
        ("TEST", "tiny_vall", "TEST: .*'tiny_vall' is not regis.*yaml describes tiny_train, tiny"),
        ("TRAIN", "xyz", "DATASETS.TRAIN: Data set 'xyz' is not registered.*--data FILE"),
        ("TEST", "tiny_sem_vall", "'tiny_sem_vall' is not .*Similar names: .*tiny_sem_val"),
    ],
)
def test_data_that_cannot_be_used(tiny_data, split, name, fault):
    with pytest.raises(ValueError, match=fault):
        complete(f"DATASETS.{split}", f"('{name}',)")


def test_other_data_in_the_folder_do_not_matter(tiny_data, tmp_path, monkeypatch):
    (tmp_path / "tiny").symlink_to(tiny_data / "tiny")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/broken.yaml").write_text("{")
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    assert complete().MODEL.ROI_HEADS.NUM_CLASSES == 4
    with pytest.raises(ValueError, match="broken/broken.yaml is not valid YAML"):
        complete("DATASETS.TEST", "('broken_val',)")


def test_evaluation_does_not_look_at_the_training_data(tiny_data):
    cfg = complete(
        *("DATASETS.TRAIN", "('moved_away',)", "INPUT.MASK_FORMAT", "polygon"), training=False
    )
    assert cfg.MODEL.ROI_HEADS.NUM_CLASSES == 4


def test_nothing_to_train_or_evaluate_on(tiny_data, make_args):
    with pytest.raises(ValueError, match=r"DATASETS.TRAIN is empty.*train on.*'NAME',"):
        setup(make_args("DATASETS.TRAIN", "()"))
    with pytest.raises(ValueError, match=r"DATASETS.TEST is empty.*evaluate on.*'NAME',"):
        setup(make_args("DATASETS.TEST", "()", flags=("--eval-only",)))


@pytest.mark.parametrize(
    "words, fault",
    [
        (["MODEL.OCR.CHANELS", "64"], r"MODEL.OCR.CHANELS.*Did you mean MODEL.OCR.CHANNELS\?"),
        (["MODEL.OCR.CHANNELS", "many"], "Bad config value in the command line"),
        (["MODEL.OCR.CHANNELS", "(1, 2)"], "Bad config value in the command line"),
        (["SOLVER.BASE_LR", "fast"], "SOLVER.BASE_LR is a float, such as 0"),
        (["SOLVER.MAX_ITER", "many"], "SOLVER.MAX_ITER is an int, such as"),
        (["SOLVER.MAX_ITER", "1.0"], "Type mismatch .*SOLVER.MAX_ITER"),
        (["SOLVER.GAMMA", "True"], "Type mismatch .*SOLVER.GAMMA"),
        (["SOLVER.BASE_LR.X", "1"], r"SOLVER.BASE_LR.X: SOLVER.BASE_LR is a value \(0"),
        (["SOLVER", "1"], "SOLVER is a section; set one of its keys, such as SOL"),
        (["SOLVER.BASE_LR"], "KEY VALUE pairs"),
        (["SOLVER.STEPS", "(" * 100000], "SOLVER.STEPS"),
        (["OUTPUT_DIR", "\x1b[31m"], r"OUTPUT_DIR is '\\x1b"),
        (["SOLVER.BASE_LR", "1", "--resume"], "--resume: flags stand before the first KEY"),
        (
            ["DATASETS.TRAIN", "city_train"],
            "in the command line.*city_train(.|\n)*DATASETS.TRAIN is a tuple, such as .*quotes on "
            r"the command line: \"\('one_name',\)",
        ),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_a_command_line_cannot_say(words, fault):
    with pytest.raises(ValueError, match=fault):
        load_config(str(OCR_CONFIG), words)


def test_a_config_is_a_file_of_this_machine():
    with pytest.raises(FileNotFoundError, match=r"nowhere.yaml"):
        load_config("nowhere.yaml", [])
    with pytest.raises(ValueError, match="--config-file http://127.0.0.1/c.yaml is an address"):
        load_config("http://127.0.0.1/c.yaml", [])


def test_an_integer_serves_as_a_number(tmp_path):
    """1 serves as 1.0 in a file, in one that it includes, and on the command line."""
    (tmp_path / "base.yaml").write_text("SOLVER: {BASE_LR: 3}\n")
    (tmp_path / "c.yaml").write_text("_BASE_: base.yaml\nSOLVER: {MOMENTUM: 1}\nVERSION: 2\n")
    cfg = load_config(str(tmp_path / "c.yaml"), ["SOLVER.GAMMA", "-1", "SOLVER.WEIGHT_DECAY", 2])
    solver = cfg.SOLVER
    found = [solver.BASE_LR, solver.MOMENTUM, solver.GAMMA, solver.WEIGHT_DECAY]
    assert found == [3, 1, -1, 2] and all(isinstance(value, float) for value in found)


@pytest.mark.parametrize(
    "content, found", [("", "is empty"), ("- a\n- b\n", "holds a list"), ("text", "holds a str")]
)
def test_file_without_keys(tmp_path, content, found):
    (tmp_path / "base.yaml").write_text(content)
    (tmp_path / "c.yaml").write_text("_BASE_: base.yaml\n")
    for name in ("base.yaml", "c.yaml"):
        with pytest.raises(ValueError, match=f"base.yaml {found}; it needs lines of the form KEY"):
            load_config(str(tmp_path / name), [])


def test_a_file_lies_over_those_that_it_includes(tmp_path):
    (tmp_path / "a.yaml").write_text("SOLVER: {BASE_LR: 1, GAMMA: 0.5, MOMENTUM: 0.5}\n")
    (tmp_path / "b.yaml").write_text("SOLVER: {GAMMA: 0.25}\nINPUT: {CROP: {SIZE: [8, 8]}}\n")
    (tmp_path / "c.yaml").write_text("_BASE_: [a.yaml, b.yaml]\nINPUT: {CROP: {ENABLED: true}}\n")
    cfg = load_config(str(tmp_path / "c.yaml"), ["SOLVER.MOMENTUM", "0.75"])
    assert (cfg.SOLVER.BASE_LR, cfg.SOLVER.GAMMA, cfg.SOLVER.MOMENTUM) == (1, 0.25, 0.75)
    assert (cfg.INPUT.CROP.SIZE, cfg.INPUT.CROP.ENABLED) == ([8, 8], True)


@pytest.mark.parametrize(
    "content, fault",
    [
        ("_BASE_: 5\n", r"_BASE_: 5; it is the path of a file, or a list of them"),
        ("_BASE_: [5]\n", r"_BASE_: \[5\]; it is the path"),
        ("_BASE_: c.yaml\n", "c.yaml names _BASE_: c.yaml, which includes .*c.yaml"),
        ("_BASE_: ../base.yaml\n", "c.yaml names _BASE_: ../base.yaml, but /.*base"),
        ("SOLVER: 5\n", "c.yaml: SOLVER is a section; set one of its keys, such as SOLVER"),
        ("SOLVER: \n", "c.yaml: SOLVER is a section"),
        ("SOLVER: [1]\n", "c.yaml: SOLVER is a section"),
        ("_BASE_: {a: 1}\n", r"_BASE_: {'a': 1}; it is the path"),
        ("SOLVER: {STEPS: }\n", "SOLVER.STEPS has no value; it is a tuple, such as"),
        ("SOLVER: {BASE_LR: }\n", "SOLVER.BASE_LR has no value; it is a float, such as 0.001"),
        ("_BASE_: null\n", r"_BASE_: None; it is the path"),
        ("_BASE_: http://127.0.0.1/a.yaml\n", "an address; download the file first"),
        ("5: 6\n", "the key 5; the keys of a config are words"),
        ("MODEL: {OCR: {CHANELS: 64}}\n", "MODEL.OCR.CHANELS in .*c.yaml. Did you mean MODEL.OCR"),
        ("SOLVER:\n  5: 6\n", "the key 5; the keys"),
        ("A: [" + "[" * 99 + "]" * 100 + "\n", "is not valid YAML: nested too deeply"),
        ('OUTPUT_DIR: "a\\0b"\n', r"OUTPUT_DIR is 'a\\x00b', with characters that cannot"),
        ('DATASETS: {TRAIN: ["\\e[31mX"]}\n', r"DATASETS.TRAIN is \['\\x1b\[31mX'\], with char"),
    ],
    ids=lambda text: text[:20].encode("unicode_escape").decode(),
)
def test_what_a_file_cannot_say(tmp_path, content, fault):
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=fault) as error:
        load_config(str(tmp_path / "c.yaml"), [])
    message = str(error.value)
    assert message.isprintable() and len(message) < 300


@pytest.mark.parametrize(
    "key, value, fault",
    [
        ("SOLVER.MAX_ITER", -5, "at least 0"),
        ("SOLVER.BASE_LR", -0.1, "at least 0"),
        ("SOLVER.BASE_LR", math.nan, "at least 0"),
        ("SOLVER.BASE_LR", math.inf, "at least 0"),
        ("SOLVER.WEIGHT_DECAY", -1.0, "at least 0"),
        ("SOLVER.WARMUP_ITERS", -1, "at least 0"),
        ("SOLVER.CHECKPOINT_PERIOD", -1, "at least 0 (0 saves at the end alone)"),
        ("SOLVER.GATHER_METRIC_PERIOD", 0, "at least 1"),
        ("TEST.EVAL_PERIOD", -1, "at least 0 (0 evaluates at the end alone)"),
        ("DATALOADER.NUM_WORKERS", -1, "at least 0 (0 loads images in the training's own process)"),
        ("SOLVER.STEPS", (2, "a"), "a tuple of rising iterations"),
        ("SOLVER.STEPS", (2, 1), "a tuple of rising iterations"),
        ("SOLVER.LR_SCHEDULER_NAME", "Foo", "one of WarmupMultiStepLR, WarmupCosineLR"),
        ("SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "foo", "one of value, norm"),
        ("DATALOADER.SAMPLER_TRAIN", "Foo", "one of TrainingSampler"),
        ("MODEL.BACKBONE.NAME", "foo", "one of build_"),
        ("MODEL.SEM_SEG_HEAD.NAME", "foo", "one of "),
        ("MODEL.RESNETS.DEPTH", 17, "one of 18, 34"),
        ("MODEL.OCR.NORM", "foo", 'one of "", BN, SyncBN'),
        ("MODEL.DEVICE", "foo", "auto, cpu, or cuda"),
        ("MODEL.DEVICE", "meta", "auto, cpu, or cuda"),
        ("INPUT.MIN_SIZE_TRAIN", (), "at least one size in pixels"),
        ("INPUT.MIN_SIZE_TRAIN", (-64,), "at least one size in pixels"),
        ("INPUT.MIN_SIZE_TRAIN", ("a",), "at least one size in pixels"),
        ("INPUT.MIN_SIZE_TRAIN_SAMPLING", "foo", "one of choice, range"),
        ("INPUT.FORMAT", "XYZ", "one of BGR, RGB"),
        ("MODEL.OCR.KEY_CHANNELS", 0, "at least 1"),
        ("MODEL.TIMM.PATCH_SIZE", -1, "at least 0"),
        ("MODEL.OCR.CHANNELS", 0, "at least 1"),
        ("MODEL.PIXEL_STD", [0, 1, 1], "a list of numbers above 0"),
        ("MODEL.PIXEL_STD", [1, 1, math.nan], "a list of numbers above 0"),
        ("MODEL.PANOPTIC_FPN.COMBINE.CLASS_CONFIDENCE", [0.5, "a"], "a list of numbers of at"),
        ("MODEL.KEYPOINT_ON", True, "it is to be False"),
        ("MODEL.LOAD_PROPOSALS", True, "it is to be False"),
        ("TEST.AUG.MIN_SIZES", [], "at least one size in pixels"),
        ("DATALOADER.SAMPLER_TRAIN", "WeightedTrainingSampler", "one of TrainingSampler"),
        ("MODEL.META_ARCHITECTURE", "Foo", "PanopticFPN or OCRSemanticSegmentor"),
        ("SEED", 10**30, "at most 2147483647"),
    ],
)
def test_values_that_nothing_can_be_done_with(tiny_data, key, value, fault):
    cfg = load_config(str(OCR_CONFIG), TINY_NAMES)
    node, *name = cfg, *key.split(".")
    for part in name[:-1]:
        node = node[part]
    node[name[-1]] = value
    with pytest.raises(ValueError) as error:
        complete_config(cfg)
    message = str(error.value)
    assert message.startswith(f"{key} is {value}") and fault in message and "\n" not in message


def test_an_image_that_the_configs_sizes_scale_to_nothing(tmp_path, make_args, clean_catalog):
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
        Image.new("L", (300, 1)).save(tmp_path / folder / "thin.png")
    split = SemanticSplit(tmp_path / "images", tmp_path / "labels")
    write_data_file(tmp_path / "thin.yaml", "thin", {"train": split}, classes=["a", "b"])
    opts = ["DATASETS.FILES", f"('{tmp_path}/thin.yaml',)", "DATASETS.TRAIN", "('thin_train',)"]
    opts += ["DATASETS.TEST", "()", "INPUT.MIN_SIZE_TRAIN", "(64,)", "INPUT.MAX_SIZE_TRAIN", "100"]
    with pytest.raises(DataFaults, match=r"thin\.png: the image of 300x1 .* INPUT.MAX_SIZE_TRAIN"):
        setup(make_args(*opts, config=SEMANTIC_CONFIG))


def test_the_defaults_and_a_run_without_checkpoints_are_allowed(tiny_data):
    cfg = complete("SOLVER.CHECKPOINT_PERIOD", "0", "TEST.EVAL_PERIOD", "0", "SEED", "-1")
    assert (cfg.SOLVER.CHECKPOINT_PERIOD, cfg.TEST.EVAL_PERIOD, cfg.SEED) == (0, 0, -1)


@pytest.mark.parametrize(
    "folder, fault",
    [
        ("", "OUTPUT_DIR is empty. Set"),
        ("s3://bucket/run", "OUTPUT_DIR is s3://bucket/run. Set OUTPUT_DIR to a folder of this"),
        ("what?", r"OUTPUT_DIR is what\?, but what follows"),
        ("file", r"OUTPUT_DIR file cannot be written \(File exists\). Set"),
        ("file/run", r"OUTPUT_DIR file/run cannot be written \(Not a directory\). Set"),
        ("/proc/run", r"OUTPUT_DIR /proc/run cannot be written \(.*\). Set"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--eval-only",)], ids=["train", "eval"])
def test_a_folder_that_cannot_be_that_of_a_run(
    make_args, tmp_path, monkeypatch, folder, fault, flags
):
    """Before anything is read: the data of these arguments do not exist."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=fault):
        setup(make_args("OUTPUT_DIR", folder, flags=flags))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("place", ["inference", "inference/tiny_val"])
def test_a_file_in_the_place_of_results(tiny_data, make_args, tmp_path, place):
    path = tmp_path / "run" / place
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ValueError, match=f"{path} is a file, where results"):
        setup(make_args())


def test_a_folder_that_can_be_read_alone(make_args, tmp_path, monkeypatch):
    """A disk may be mounted so; root may write anywhere else."""

    def refuse(dir: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", dir)

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"/run cannot be written \(Read-only file system\)"):
        setup(make_args())


def test_yaml_runs_no_code(tmp_path):
    marker = tmp_path / "marker"
    (tmp_path / "c.yaml").write_text(f"OUTPUT_DIR: !!python/object/apply:os.mkdir ['{marker}']\n")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_config(str(tmp_path / "c.yaml"), [])
    assert not marker.exists()


def test_device_follows_the_machine(tiny_data, monkeypatch):
    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert ("cuda" if there else "cpu") == complete().MODEL.DEVICE
        assert complete("MODEL.DEVICE", "cpu").MODEL.DEVICE == "cpu"
    with pytest.raises(ValueError, match="MODEL.DEVICE is cuda, but torch sees no GPU"):
        complete("MODEL.DEVICE", "cuda")


@pytest.mark.parametrize("config", [OCR_CONFIG, SEMANTIC_CONFIG], ids=lambda c: c.stem)
def test_device_and_norms_are_logged(tiny_data, make_args, tmp_path, config):
    name = "tiny" if config == OCR_CONFIG else "tiny_sem"
    data = ["DATASETS.TRAIN", f"('{name}_train',)", "DATASETS.TEST", f"('{name}_val',)"]
    norms = ["MODEL.OCR.NORM", "GN"]
    norms += ["MODEL.TIMM.NORM" if "sem" in name else "MODEL.RESNETS.NORM", "FrozenBN"]
    setup(make_args(*data, *norms, config=config))
    log = (tmp_path / "run/log.txt").read_text()
    assert "MODEL.DEVICE is cpu" in log
    assert "norm of the backbone FrozenBN, of the OCR head GN" in log


def test_config_of_a_run_serves_on_another_machine(tiny_data, make_args, tmp_path, monkeypatch):
    """Written where there is no GPU, read where there are two, and the reverse."""
    module = sys.modules["ocr_panoptic.engine.setup"]  # engine.setup is the function
    monkeypatch.setattr(module, "collect_env_info", lambda: "")  # asks the GPU
    saved = tmp_path / "config.yaml"
    for here, there in ((0, 2), (2, 0)):
        use_gpus(monkeypatch, here)
        cfg, written = setup(make_args("MODEL.DEVICE", "auto"))
        saved.write_text(written)
        assert found(here) == (cfg.MODEL.DEVICE, cfg.MODEL.OCR.NORM)
        use_gpus(monkeypatch, there)
        read = load_config(str(saved), [])
        assert read.MODEL.ROI_HEADS.NUM_CLASSES == 4  # the data's, written out
        complete_config(read)
        assert found(there) == (read.MODEL.DEVICE, read.MODEL.OCR.NORM)
    saved.write_text(setup(make_args("MODEL.DEVICE", "cpu", "MODEL.OCR.NORM", "BN"))[1])
    asked = load_config(str(saved), [])
    assert (asked.MODEL.DEVICE, asked.MODEL.OCR.NORM) == ("cpu", "BN")


def test_config_of_an_evaluation_can_be_read(tiny_data, tmp_path):
    """A norm of this machine in a key that nothing reads would be refused."""
    saved = tmp_path / "config.yaml"
    completed = complete(*TINY_NAMES, training=False)
    saved.write_text(portable(completed, "model.pth").dump())
    complete_config(read := load_config(str(saved), []))
    assert read.MODEL.ROI_HEADS.NUM_CLASSES == completed.MODEL.ROI_HEADS.NUM_CLASSES
    assert read.MODEL.WEIGHTS == "model.pth"


def found(gpus: int) -> tuple[str, str]:
    return ("cuda", "SyncBN") if gpus else ("cpu", "BN")


def use_gpus(monkeypatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: max(count, 1))


A, B = ("a",), ("a", "b")  # data sets of an evaluation


@pytest.mark.parametrize(
    "opts, data, fault",
    [
        ({}, A, ""),
        ({"MODEL.DEVICE": "mps", "SOLVER.AMP.ENABLED": True}, A, "True.* MODEL.DEVICE is mps"),
        ({"SOLVER.AMP.ENABLED": True}, A, ""),
        ({"SOLVER.ACCUMULATION_STEPS": 3}, A, "ACCUMULATION_STEPS 3 do not divide"),
        ({"SOLVER.ACCUMULATION_STEPS": 0}, A, "ACCUMULATION_STEPS 0 do not divide"),
        ({"SOLVER.ACCUMULATION_STEPS": 4}, A, ""),
        ({"TEST.BEST_CHECKPOINT": "panoptic_seg/PQ"}, A, ""),
        ({"TEST.BEST_CHECKPOINT": "sem_seg/IoU-car"}, A, ""),
        ({"TEST.BEST_CHECKPOINT": "b/sem_seg/mIoU"}, B, ""),
        ({"TEST.BEST_CHECKPOINT": "sem_seg/miou"}, A, "sem_seg/miou, which no evaluation"),
        ({"TEST.BEST_CHECKPOINT": "PQ"}, A, "is PQ, which no evaluation"),
        ({"TEST.BEST_CHECKPOINT": "panoptic/PQ"}, A, "panoptic/PQ, which no evaluation"),
        ({"TEST.BEST_CHECKPOINT": "sem_seg/mIoU"}, B, "sem_seg/mIoU, which no evaluation"),
        ({"TEST.BEST_CHECKPOINT": "c/sem_seg/mIoU"}, B, "c/sem_seg/mIoU, which no evaluation"),
        ({"TEST.BEST_CHECKPOINT": "sem_seg/mIoU"}, (), "sem_seg/mIoU, which no evaluation"),
        ({"TEST.BEST_CHECKPOINT": "sem_seg/ECE"}, A, "TEST.BEST_CHECKPOINT is sem_seg/ECE, an err"),
    ],
)
def test_what_a_training_cannot_do(opts, data, fault):
    opts = {"MODEL.DEVICE": "cpu", "SOLVER.IMS_PER_BATCH": 8, **opts}
    cfg = load_config(str(OCR_CONFIG), [str(part) for pair in opts.items() for part in pair])
    cfg.DATASETS.TEST = data
    with pytest.raises(ValueError, match=fault) if fault else contextlib.nullcontext():
        check_solver(cfg, 1)


@pytest.mark.parametrize(
    "reference, batch, steps, fits",
    [
        (0, 1, 1, False),
        (1, 1, 1, True),  # scaled to 2 images
        (4, 4, 2, False),  # scaled to 2 images, which would leave parts empty
    ],
)
def test_batch_of_two_processes(reference, batch, steps, fits):
    cfg = load_config(str(OCR_CONFIG), ["MODEL.DEVICE", "cpu"])
    cfg.SOLVER.update(REFERENCE_WORLD_SIZE=reference, IMS_PER_BATCH=batch, ACCUMULATION_STEPS=steps)
    fault = pytest.raises(ValueError, match="ACCUMULATION_STEPS")
    with contextlib.nullcontext() if fits else fault:
        check_solver(scaled(cfg, 2), 2)


def test_batch_that_the_reference_does_not_divide():
    opts = ["SOLVER.REFERENCE_WORLD_SIZE", "3", "SOLVER.IMS_PER_BATCH", "8", "MODEL.DEVICE", "cpu"]
    cfg = load_config(str(OCR_CONFIG), opts)
    with pytest.raises(ValueError, match="IMS_PER_BATCH is 8, which the 3 processes of SOLVER.REF"):
        Trainer(cfg)


def test_sync_bn_only_where_there_is_something_to_synchronise(tiny_data, monkeypatch):
    cfg = complete()
    assert cfg.MODEL.OCR.NORM == cfg.MODEL.RESNETS.NORM == "BN"
    assert cfg.MODEL.SEM_SEG_HEAD.NORM == "GN"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: 2)
    assert complete("MODEL.DEVICE", "cuda").MODEL.OCR.NORM == "SyncBN"
    assert complete("MODEL.DEVICE", "cpu").MODEL.OCR.NORM == "SyncBN"


TIMM = "MODEL.BACKBONE.NAME build_timm_fpn_backbone MODEL.TIMM.FROZEN True"
MEANS, FOUR = "MODEL.PIXEL_MEAN [1.0,1.0,1.0,1.0]", "INPUT.CHANNELS 4"


@pytest.mark.parametrize(
    "config, opts, fault",
    [
        (OCR_CONFIG, "TEST.FLIP True", "TEST.FLIP is True (default False)"),
        (OCR_CONFIG, "TEST.AUG.FLIP False", "read with TEST.AUG.ENABLED True alone"),
        (SEMANTIC_CONFIG, "TEST.AUG.ENABLED True", "MODEL.META_ARCHITECTURE PanopticFPN"),
        (OCR_CONFIG, "TEST.SCALES [2.0]", "TEST.SCALES is [2.0]"),
        (OCR_CONFIG, "MODEL.SEM_SEG_HEAD.COARSE_KERNEL 1", "COARSE_KERNEL is 1 (default 3)"),
        (OCR_CONFIG, "MODEL.TIMM.NAME resnet18", "build_timm_backbone, build_timm_fpn_backbone or"),
        (PLAIN_CONFIG, "MODEL.CONTEXT.NAME PPM", "CONTEXT.NAME is 'PPM' (default 'OCR')"),
        (SEMANTIC_CONFIG, "MODEL.RESNETS.STEM_TYPE basic", "build_dilated_resnet_backbone"),
        (SEMANTIC_CONFIG, "MODEL.CONTEXT.DILATIONS [1,2,3]", "CONTEXT.NAME ASP-OCR or ASPP alone"),
        (SEMANTIC_CONFIG, "MODEL.SEM_SEG_HEAD.OHEM_MIN_KEPT 5", "COARSE_LOSS_TYPE ohem alone"),
        (OCR_CONFIG, "SOLVER.POLY_LR_POWER 2.0", "LR_SCHEDULER_NAME WarmupPolyLR alone"),
        (OCR_CONFIG, "SOLVER.OPTIMIZER AdamW SOLVER.MOMENTUM 0.5", "with SOLVER.OPTIMIZER SGD"),
        (OCR_CONFIG, "SOLVER.LAYER_DECAY 0.9", "with MODEL.BACKBONE.NAME build_timm_backbone"),
        (OCR_CONFIG, "SOLVER.LAYER_DECAY 0.0", "LAYER_DECAY is 0.0; it is a number in (0, 1]"),
        (OCR_CONFIG, f"{TIMM} SOLVER.LAYER_DECAY 0.9", "with MODEL.TIMM.FROZEN False"),
        (OCR_CONFIG, f"{TIMM} MODEL.TIMM.DROP_PATH 0.9", "with MODEL.TIMM.FROZEN False"),
        (OCR_CONFIG, "SOLVER.BASE_LR_END 0.001", "with SOLVER.LR_SCHEDULER_NAME WarmupCosineLR"),
        (
            *(OCR_CONFIG, "SOLVER.LR_SCHEDULER_NAME WarmupCosineLR SOLVER.BASE_LR_END 2.0"),
            "BASE_LR_END is 2.0; it",
        ),
        (OCR_CONFIG, "SOLVER.OPTIMIZER Adam", "SOLVER.OPTIMIZER is Adam; it is one of SGD, AdamW"),
        (OCR_CONFIG, "TEST.PRECISION half", "is half; it is one of float32, bfloat16, float16"),
        (OCR_CONFIG, "MODEL.EMA.DECAY 0.5", "it is read with MODEL.EMA.ENABLED True"),
        (OCR_CONFIG, "MODEL.EMA.ENABLED True MODEL.EMA.DECAY 1.0", "it is a number in [0, 1)"),
        (OCR_CONFIG, FOUR, "3 values, and INPUT.CHANNELS is 4; each channel has"),
        (OCR_CONFIG, f"{FOUR} {MEANS}", "MODEL.PIXEL_STD is [57.375, 57.12, 58.395], 3 values"),
        (OCR_CONFIG, MEANS, "4 values, and INPUT.CHANNELS is 3"),
        (OCR_CONFIG, "INPUT.CHANNELS 0", "INPUT.CHANNELS is 0; it is a number of at least 1"),
        (OCR_CONFIG, "SOLVER.HEAD_LR_FACTOR 0.0", "LR_FACTOR is 0.0; it is a number above 0"),
        (OCR_CONFIG, "MODEL.CONTEXT.NAME GT-OCR MODEL.CONTEXT.TRUE_PART all", "is all; it is one"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_keys_that_do_not_go_together(config, opts, fault):
    with pytest.raises(ValueError, match=re.escape(fault)):
        complete_config(load_config(str(config), opts.split()))


def test_all_keys_that_nothing_reads_are_named():
    opts = ["TEST.SCALES", "[2.0]", "MODEL.SEM_SEG_HEAD.COARSE_KERNEL", "1"]
    with pytest.raises(ValueError, match=r"(?s)keys that nothing reads.*COARSE.*TEST\.SCALES"):
        complete_config(load_config(str(OCR_CONFIG), opts))


def test_the_head_alone_makes_the_plain_baseline(tiny_data, caplog):
    opts = ["MODEL.SEM_SEG_HEAD.NAME", "SemSegFPNHead", "MODEL.OCR.CHANNELS", "64"]
    complete(*opts)
    assert "MODEL.OCR.CHANNELS, MODEL.OCR.KEY_CHANNELS: set, but SemSegFPNHead" in caplog.text


@pytest.mark.parametrize("value", ["0", "2"])
def test_what_detectron2s_default_freezes_of_timms_networks(tiny_data, make_args, value, caplog):
    opts = ["MODEL.BACKBONE.FREEZE_AT", value, *TINY_SEMANTIC]
    setup(make_args(*opts, config=SEMANTIC_CONFIG))
    is_said = "FREEZE_AT is 2, and freezes nothing of a network of timm" in caplog.text
    assert is_said == (value == "2")
