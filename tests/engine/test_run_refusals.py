"""A run that cannot work gives one line that names the key, before it reads or writes anything."""

import functools
import math
import shlex

import pytest
import torch
from detectron2.config import CfgNode

from ocr_panoptic.cli.arguments import RunOptions
from ocr_panoptic.config.files import load_config
from ocr_panoptic.predict.complete import complete_config
from support.tiny_runs import CONFIGS, OCR_CONFIG, PLAIN_CONFIG, SEMANTIC_CONFIG, TINY_SEMANTIC
from train_net import main

NOTHING = "at least 0"
SIZES = "at least one size in pixels"
RISING = "a tuple of increasing iterations"


@pytest.mark.parametrize(
    "key, value, fault",  # a row for each kind of rule; docs/keys.md has the rule of each key
    [
        ("SOLVER.MAX_ITER", -5, NOTHING),
        *((f"SOLVER.{key}", 10**11, "and at most 1,000,000,000") for key in ("MAX_ITER", "EPOCHS")),
        *(("MODEL.TIMM.NAME", name, "a plain name") for name in ("hf-hub:x/y", "local-dir:/x")),
        *(("SOLVER.BASE_LR", value, NOTHING) for value in (-0.1, math.nan, math.inf)),
        ("SOLVER.CHECKPOINT_PERIOD", -1, "at least 0 (0 saves"),
        ("TEST.EVAL_PERIOD", -1, "at least 0 (0 uses TEST.EVALUATIONS)"),
        ("DATALOADER.NUM_WORKERS", -1, "at least 0 (0 loads images in the training's own process)"),
        *(("SOLVER.STEPS", value, RISING) for value in ((2, "a"), (2, 1))),
        ("SOLVER.LR_SCHEDULER_NAME", "Foo", "one of WarmupMultiStepLR, WarmupCosineLR"),
        ("DATALOADER.SAMPLER_TRAIN", "WeightedTrainingSampler", "one of TrainingSampler"),
        ("MODEL.BACKBONE.NAME", "foo", "one of build_"),
        ("MODEL.RESNETS.DEPTH", 17, "one of 18, 34"),
        ("MODEL.OCR.NORM", "foo", 'one of "", BN, SyncBN'),
        *(("MODEL.DEVICE", value, "auto, cpu, cuda, or") for value in ("foo", "meta", "mps")),
        *(("INPUT.MIN_SIZE_TRAIN", value, SIZES) for value in ((), (-64,), ("a",))),
        ("INPUT.FORMAT", "XYZ", "one of BGR, RGB"),
        ("MODEL.OCR.KEY_CHANNELS", 0, "at least 1"),
        ("MODEL.SEM_SEG_HEAD.OHEM_THRESHOLD", 90, "a number in (0, 1]"),
        ("MODEL.PIXEL_STD", [1, 1, math.nan], "a list of numbers above 0"),
        (
            "MODEL.PANOPTIC_FPN.COMBINE.CLASS_CONFIDENCE",
            [0.5, "a"],
            "numbers not below 0",
        ),
        ("MODEL.KEYPOINT_ON", True, "expected the value False"),
        ("MODEL.SEM_SEG_HEAD.IGNORE_VALUE", 254, "expected the value 255"),
        ("MODEL.META_ARCHITECTURE", "Foo", "expected one of OCRSemanticSegmentor, PanopticFPN"),
        ("SEED", 10**30, "up to 2147483647"),
    ],
)
def test_unusable_values(key, value, fault):
    cfg = load_config(str(OCR_CONFIG), ["DATASETS.TEST", "()"])
    *sections, name = key.split(".")
    functools.reduce(CfgNode.get, sections, cfg)[name] = value
    with pytest.raises(ValueError) as error:
        complete_config(cfg)
    message = str(error.value)
    assert message.startswith(f"{key} is {value}") and fault in message and "\n" not in message


P, S, PLAIN = OCR_CONFIG, SEMANTIC_CONFIG, PLAIN_CONFIG
SEGFIX = CONFIGS / "SegFix/segfix_HRNet_W48_custom.yaml"
TIMM = "MODEL.BACKBONE.NAME build_timm_fpn_backbone MODEL.TIMM.FROZEN True"
COSINE = "SOLVER.LR_SCHEDULER_NAME WarmupCosineLR"
BEST, STEPS = "TEST.BEST_CHECKPOINT", "SOLVER.LR_SCHEDULER_NAME WarmupMultiStepLR SOLVER.STEPS"
TEST, TRAIN = "DATASETS.TEST", "DATASETS.TRAIN"
REFUSED = [  # config; flags and keys; parts of the message
    # unknown keys and wrong values
    (P, "MODEL.OCR.CHANELS 64", "MODEL.OCR.CHANELS ... Did you mean MODEL.OCR.CHANNELS?"),
    (P, "MODEL.OCR.CHANNELS many", "MODEL.OCR.CHANNELS is many; expected ... int"),
    (P, "MODEL.OCR.CHANNELS '(1, 2)'", "MODEL.OCR.CHANNELS is ... of type int"),
    (P, "SOLVER.BASE_LR.X 1", "Unknown config key SOLVER.BASE_LR.X ... mean SOLVER.BASE_LR"),
    (P, "MODEL.OCR 5", "MODEL.OCR is a section. Name one of its keys: CHANNELS, KEY_CHANNELS"),
    *((P, f"SOLVER.EPOCHS {v}", f"SOLVER.EPOCHS is {v}; ... a finite") for v in ("inf", "-NaN")),
    (P, "SOLVER.BASE_LR", "Expected KEY VALUE pairs"),
    (P, "SOLVER.BASE_LR=1", "SOLVER.BASE_LR=1: separate KEY and VALUE with a space"),
    (P, "SOLVER.BASE_LR 1 --resume", "--resume: put flags before the first KEY"),
    (P, f"{TRAIN} city_train", "city_train; expected ... ('scenes_train',) (in a shell:"),
    (P, "MODEL.PIXEL_STD 57", "57; expected ... such as (57.375, 57.12, 58.395) (in a shell:"),
    (P, "SOLVER.WEIGHT_DECAY_BIAS low", "BIAS is low; expected a number of at least 0"),
    ("nowhere.yaml", "", "nowhere.yaml"),
    # keys that nothing reads (docs/keys.md has the condition of each key), and values that do not
    # go together
    (P, "TEST.FLIP True", "TEST.FLIP is True (default False)"),
    (P, "TEST.AUG.FLIP False", "an effect only with TEST.AUG.ENABLED True"),
    *(
        (config, f"{keys} TEST.AUG.ENABLED True", "with MODEL.META_ARCHITECTURE PanopticSegmentor")
        for config, keys in ((S, ""), (P, "MODEL.META_ARCHITECTURE PanopticFPN"))
    ),
    (P, "MODEL.TIMM.NAME resnet18", "build_timm_backbone, build_timm_fpn_backbone or"),
    (PLAIN, "MODEL.CONTEXT.NAME PPM", "CONTEXT.NAME is 'PPM' (default 'OCR')"),
    (S, "MODEL.CONTEXT.DILATIONS [1,2,3]", "CONTEXT.NAME ASP-OCR or ASPP"),
    (P, f"{TIMM} MODEL.TIMM.DROP_PATH 0.9", "with MODEL.TIMM.FROZEN False"),
    (P, f"{COSINE} SOLVER.BASE_LR_END 2.0", "BASE_LR_END is 2.0; expected"),
    (
        P,
        "LOGGERS \"['wandb','neptune']\"",
        "LOGGERS is ... any of wandb, mlflow, each",
    ),
    (P, "MODEL.EMA.ENABLED True MODEL.EMA.DECAY 1.0", "expected a number in [0, 1)"),
    (P, "INPUT.CHANNELS 4", "(3 values), but INPUT.CHANNELS is 4. Set one"),
    (P, "MODEL.CONTEXT.NAME GT-OCR MODEL.CONTEXT.TRUE_PART all", "is all; expected one"),
    # data
    (P, f"{TRAIN} ()", f"{TRAIN} is empty. ... 'NAME',"),
    (P, f"--eval-only {TEST} ()", f"{TEST} is empty. ... 'NAME',"),
    (P, f"{TEST} \"('coco_2017_val',)\"", "coco_2017_val has no annotations that Panoptic"),
    (P, f"{TEST} \"('tiny_vall',)\"", "'tiny_vall' is not regis ... Did you mean tiny_val"),
    (P, f"{TRAIN} \"('xyz',)\"", "Data set 'xyz' is not registered ... --data FILE"),
    (P, f"{TRAIN} \"('cityscapes_panoptic_test',)\" {TEST} ()", "_test has no annotations"),
    (S, f"{TRAIN} \"('tiny_train',)\" {TEST} ()", "tiny_train is a panoptic data set, but a sem"),
    (P, "MODEL.ROI_HEADS.NUM_CLASSES 80", "HEADS.NUM_CLASSES is 80, but the number of"),
    (S, "MODEL.SEM_SEG_HEAD.NUM_CLASSES 19", "is 19, but tiny_sem_train has 9 classes"),
    # schedule, batch and evaluations
    (S, "SOLVER.MAX_ITER 0", "SOLVER.MAX_ITER and SOLVER.EPOCHS ... both 0"),
    (S, f"{STEPS} '(0.5, 30)'", "SOLVER.STEPS is (0.5, 30); expected a tuple of increasing"),
    (S, "TEST.PATIENCE 2", "TEST.PATIENCE is 2 ... only with TEST.BEST_CHECKPOINT"),
    (S, f"{BEST} sem_seg/mIoU TEST.PATIENCE 2", "PATIENCE is 2, ... no evaluations"),
    (P, "SOLVER.REFERENCE_WORLD_SIZE 5", "IMS_PER_BATCH is 2; ... (5 processes)"),
    (P, "SOLVER.ACCUMULATION_STEPS 3", "3 (processes x SOLVER.ACCUMULATION_STEPS, both"),
    (P, f"{BEST} sem_seg/miou", "sem_seg/miou; expected a metric"),
    (P, f"{BEST} panoptic/PQ", "panoptic/PQ; expected a metric"),
    (P, f"{BEST} sem_seg/ECE", "sem_seg/ECE; ... better when higher"),
    (S, f"{BEST} c/sem_seg/mIoU {TEST} BOTH", "c/sem_seg/mIoU; expected a metric"),
    (P, "--deterministic SEED -1", "--deterministic needs a seed, but SEED is -1"),
    # device and folder
    (P, "MODEL.DEVICE cuda", "MODEL.DEVICE is cuda, but torch sees 0 GPU"),
    (P, "OUTPUT_DIR ''", "OUTPUT_DIR is empty. Set"),
    (P, "OUTPUT_DIR s3://bucket/run", "OUTPUT_DIR is s3://bucket/run. Set OUTPUT_DIR to a folder"),
    (P, "--eval-only OUTPUT_DIR file/run", "file/run is not writable (Not a directory). Set"),
    (P, "OUTPUT_DIR /proc/run", "OUTPUT_DIR /proc/run is not writable ("),
    # weights
    (S, f"TEST.SEGFIX.WEIGHTS gone.pth TEST.SEGFIX.CONFIG_FILE {SEGFIX}", "gone.pth do not exist"),
    (P, "MODEL.WEIGHTS nowhere.pth", "The weights nowhere.pth do not exist"),
    (P, "--eval-only MODEL.WEIGHTS ''", "MODEL.WEIGHTS is empty, but inference needs"),
    (P, "--resume MODEL.WEIGHTS ''", "--resume found no checkpoint to continue"),
]


@pytest.mark.parametrize("config, words, fault", REFUSED, ids=lambda value: str(value)[-45:])
def test_refused_runs(tiny_data, make_args, tmp_path, monkeypatch, config, words, fault):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "file").touch()
    opts = shlex.split(words.replace("BOTH", "\"('tiny_sem_val','tiny_sem_train')\""))
    flags = (opts.pop(0),) if words[:2] == "--" else ()
    args = make_args(*(TINY_SEMANTIC if config == S else ()), config=config, flags=flags)
    args.opts += opts
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        main(args)
    rest = str(error.value)
    for part in fault.split(" ... "):
        assert part in rest, error.value
        rest = rest.partition(part)[2]
    assert {path.name for path in tmp_path.rglob("*")} <= {"file", "run", "log.txt"}
    assert not (tmp_path / "file").stat().st_size


def test_doors_of_a_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cats.json").write_text('{"images": [], "annotations": [], "categories": []}')
    for options, fault in (
        (RunOptions(), "No config is named"),
        (RunOptions(eval_only=True), "No trained model is named"),
        (RunOptions(imports=["os.gone.deeper"]), "--import os.gone.deeper: the module is neither"),
        (RunOptions(imports=["./mine.py"]), "--import ./mine.py: expected the name of a module"),
        (RunOptions(config_file=str(S), data=["cats.json"]), "ocr-panoptic import --from coco"),
    ):
        with pytest.raises(ValueError, match=fault):
            main(options)


def test_changing_only_the_head_gives_the_plain_baseline(caplog):
    opts = ["MODEL.SEM_SEG_HEAD.NAME", "SemSegFPNHead", "MODEL.OCR.CHANNELS", "64"]
    complete_config(load_config(str(OCR_CONFIG), ["DATASETS.TEST", "()", *opts]))
    assert "SemSegFPNHead has no OCR: MODEL.OCR.CHANNELS, MODEL.OCR.KEY_CHANNELS" in caplog.text


def test_a_file_overrides_the_files_it_includes(tmp_path):
    (tmp_path / "a.yaml").write_text("SOLVER: {BASE_LR: 1, GAMMA: 0.5, MOMENTUM: 0.5}\n")
    (tmp_path / "b.yaml").write_text("SOLVER: {GAMMA: 0.25}\nINPUT: {CROP: {SIZE: [8, 8]}}\n")
    (tmp_path / "c.yaml").write_text("_BASE_: [a.yaml, b.yaml]\nINPUT: {CROP: {ENABLED: true}}\n")
    cfg = load_config(str(tmp_path / "c.yaml"), ["SOLVER.MOMENTUM", "2"])
    assert (cfg.SOLVER.BASE_LR, cfg.SOLVER.GAMMA, cfg.SOLVER.MOMENTUM) == (1.0, 0.25, 2.0)
    assert isinstance(cfg.SOLVER.BASE_LR, float) and isinstance(cfg.SOLVER.MOMENTUM, float)
    assert (cfg.INPUT.CROP.SIZE, cfg.INPUT.CROP.ENABLED) == ([8, 8], True)


@pytest.mark.parametrize(
    "content, fault",
    [
        ("", "must consist of KEY: VALUE lines"),
        ("_BASE_: c.yaml\n", "its _BASE_ config cannot be read"),
        ("_BASE_: list.yaml\n", "list.yaml must consist of KEY: VALUE"),
        ("_BASE_: ../base.yaml\n", "/base.yaml does not exist"),
        ("_BASE_: http://127.0.0.1/a.yaml\n", "a web address. Download it first"),
        *(
            (f"SOLVER: {nothing}\n", "SOLVER in .*c.yaml is a section. .* keys: .*MAX_ITER")
            for nothing in ("5", "", "{}")
        ),
        ("SOLVER: {EPOCHS: .nan}\n", "SOLVER.EPOCHS is nan in .*c.yaml; expected a finite number"),
        ("MODEL: {OCR: {CHANNELS: {}}}\n", "MODEL.OCR.CHANNELS is {} in .* of type int"),
        ("SOLVER: {BASE_LR: 0.1, BASE_LR: 0.2}\n", "'BASE_LR' is given twice"),
        ("MODEL: {OCR: {CHANELS: 64}}\n", "MODEL.OCR.CHANELS in .*c.yaml. Did you mean MODEL.OCR"),
        ("SEED: !!python/object/apply:os.mkdir ['marker']\n", "not valid YAML"),
    ],
    ids=lambda text: text[:20].encode("unicode_escape").decode(),
)
def test_refused_config_files(tmp_path, monkeypatch, content, fault):
    """Such a file runs no code, either."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.yaml").write_text("- a\n")
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=fault) as error:
        load_config(str(tmp_path / "c.yaml"), [])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "marker").exists()
