"""The program ``ocr-panoptic`` starts fast, and suggests a word for a misspelt word."""

import os
import re
import subprocess
import sys

import pytest

from ocr_panoptic import cli
from ocr_panoptic.checkpoint import LAYOUTS
from ocr_panoptic.cli import COMMANDS, convert, import_, main, predict, view
from ocr_panoptic.cli.train import argument_parser
from ocr_panoptic.config.files import FOLDER, config_names, config_purpose, load_config
from ocr_panoptic.predict.result import LABELS
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS
from ocr_panoptic.workbench.importing.masks import POLYGONS
from support.imported import FIXTURES
from support.tiny_runs import ROOT

PHOTO = ROOT / "tests/workbench/importing/exports/images/a.jpg"
HEAVY = ("torch", "detectron2", "numpy")
SCRIPT = """
import sys, resource, ocr_panoptic.config.keys
dir(ocr_panoptic)
sys.argv = ["ocr-panoptic", *{words!r}]
try:
    from ocr_panoptic.cli import main
    main()
except SystemExit as end:
    assert not end.code, end.code
used = resource.getrusage(resource.RUSAGE_SELF)
print([name for name in {heavy!r} if name in sys.modules], used.ru_utime + used.ru_stime)
"""


@pytest.mark.parametrize("command", ["", *COMMANDS, "configs ocr_R_50_3x"])
def test_small_commands_and_help_import_nothing_that_takes_time(command):
    words = command.split() if " " in command else [*command.split(), "--help"]
    script = SCRIPT.format(words=words, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.startswith(f"usage: ocr-panoptic {command}".rstrip()) or words[-1] != "--help"
    imported, seconds = last.rsplit(" ", 1)
    assert imported == "[]" and float(seconds) < 0.5


def fails(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_a_mistyped_word_gets_a_suggestion(capsys):
    prefix = "ocr-panoptic: error: "
    assert fails(capsys, "trian") == f"{prefix}trian: no such command. Did you mean train?"
    assert fails(capsys, "xyz") == f"{prefix}xyz: no such command."
    assert fails(capsys, "view", "--dataset", "a", "--output=").endswith(
        "argument --output: the value is empty"
    )
    prefix = "ocr-panoptic train: error: "
    said = fails(capsys, "train", "--confg-file=x")
    assert said == f"{prefix}--confg-file: no such flag. Did you mean --config-file?"
    for flag, key in (("--epochs", "SOLVER.EPOCHS"), ("--weights", "MODEL.WEIGHTS")):
        said = fails(capsys, "train", flag, "3")
        assert f"{flag}: no such flag. Set the config key {key} at the end of the command." in said
    assert "at the end" not in fails(capsys, "train", "--norm", "BN")  # eight keys end in NORM
    assert argument_parser().parse_args(["--num-g", "2"]).num_gpus == 2  # flags may be abbreviated
    assert argument_parser().parse_args(["--data", "a.yaml", "SEED=1"]).opts == ["SEED=1"]
    assert "Choose one." in fails(capsys, "train", "--resume", "auto", "--overwrite")
    assert "--data: expected at least one file" in fails(capsys, "train", "--data", "SEED", "1")


OCR_3X = "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x"
OWN = "Custom-PanopticSegmentation/panoptic_fpn_ocr_R_50"
MISTAKES = [  # words of a command, part of the message
    ("train", "No config is named. Name one with --config-file"),
    ("train --data a.yaml", "a.yaml: data file not found"),
    (
        "train --config-file {own} --minutes 5",
        "needs --data and cannot be combined",
    ),
    ("train --minutes 5", "needs --data and cannot be combined"),
    ("plan", "nothing to plan for. Name data files"),
    ("plan --data nope.yaml", "nope.yaml: data file not found"),
    ("train --config-file nope", "The config nope does not exist"),
    (f"train --config-file {OCR_3X.replace('R_50', 'R50')}", f"Did you mean {OCR_3X}?"),
    (f"train --config-file configs/{OWN.lower()}.yml", f"does not exist. Did you mean {OWN}?"),
    ("train --config-file {own} --data nope.yaml", "nope.yaml: data file not found"),
    ("train --config-file {own} SOLVER.MAX_ITERR 3", "Did you mean SOLVER.MAX_ITER?"),
    ("train --config-file {own} SOLVER.MAX_ITER -5", "expected a number of at least 0"),
    ("train --config-file {own} --data {own}", "not a data file"),
    ("check --config-file {own} --num-gpus 0", "--num-gpus: found 0; expected a number"),
    ("predict --weights {empty} --input . --output o", "--weights: the value is empty"),
    ("evaluate --config-file {empty} --weights a.pth", "--config-file: the value is empty"),
    ("train --config-file {own} --data a.yaml {empty}", "a.yaml: data file not found"),
    ("check {empty}", "The path of a data file is empty"),
    ("check", "nothing to check"),
    ("check nope.yaml", "nope.yaml: data file not found"),
    ("evaluate --weights nope.pth", "The weights nope.pth do not exist"),
    ("predict --weights {own} --input nope --output o", "nope: no such file or folder"),
    ("predict --input . --output o", "No trained model is named"),
    (f"predict --config-file {{own}} --input {PHOTO} --output {PHOTO}", "is a file. Name a folder"),
    ("train --config-file /dev/null", "The config /dev/null is not a file"),
    ("report", "No trained model is named"),
    ("regions --config-file {own} TEST.FLIPP 1", "Did you mean TEST.FLIP?"),
    ("fit-merge --config-file {own} --data nope.yaml", "nope.yaml: data file not found"),
    ("compare --config-file nope --output o", "The config nope does not exist"),
    ("convert --from hrnet nope.pth o.pth --config-file {own}", "nope.pth: file not found"),
    ("refine --predictions nope --output o --offsets .", "--predictions nope: folder not found"),
    ("view --dataset a_train --data nope.yaml --output o.html", "nope.yaml: data file not found"),
]
SEVERAL = """
import shlex, sys
from ocr_panoptic.cli import main
for line in sys.stdin.read().splitlines():
    try:
        main(shlex.split(line))
    except SystemExit as end:
        assert end.code in (1, 2)
    print("NEXT", file=sys.stderr)
"""


def test_mistakes_are_told_in_a_line(tmp_path):
    lines = "\n".join(words.format(own=f"{FOLDER}/{OWN}.yaml", empty="''") for words, _ in MISTAKES)
    command = {"args": [sys.executable, "-c", SEVERAL], "input": lines, "cwd": tmp_path}
    done = subprocess.run(
        **command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    said = done.stderr.split("NEXT\n")
    for (words, message), text in zip(MISTAKES, said, strict=False):
        assert message in text and "Traceback" not in text, (words, text)
    assert len(said) == len(MISTAKES) + 1 and not done.returncode and not said[-1]
    assert not list(tmp_path.iterdir())


def test_resume_and_data_do_not_take_keys():
    def parsed(*words: str) -> tuple:
        args = argument_parser().parse_args([*words])
        return args.resume, args.data, args.opts

    keys = ["SOLVER.MAX_ITER", "3"]
    assert parsed(*keys) == (False, [], keys)
    assert parsed("--resume", *keys) == (True, [], keys)
    assert parsed("--resume", "auto", *keys) == ("auto", [], keys)
    assert parsed("--data", "a.yaml", "B.yaml", *keys) == (False, ["a.yaml", "B.yaml"], keys)
    assert parsed("--data", "a.yaml", "--data", "b.yaml") == (False, ["a.yaml", "b.yaml"], [])
    assert parsed("--data", "a.yaml", "--resume", *keys) == (True, ["a.yaml"], keys)
    assert parsed("--resume", "auto", "--num-gpus", "2", *keys) == ("auto", [], keys)
    assert parsed("--data", "a.yaml", "OUTPUT_DIR", "b") == (False, ["a.yaml"], ["OUTPUT_DIR", "b"])


def test_a_tilde_means_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    words = ["--dataset", "b", "--output=~/page.html"]
    assert str(view.argument_parser().parse_args(words).output) == "/home/me/page.html"
    assert load_config("", ["OUTPUT_DIR", "~/run"]).OUTPUT_DIR == "/home/me/run"


def test_choices_equal_the_package():
    """Parsers repeat the choices, to avoid slow imports."""
    assert predict.LABELS == LABELS
    assert set(convert.LAYOUTS) == set(LAYOUTS)
    assert list(ANNOTATION_FORMATS) == import_.FORMATS, "the docstring of cli/import_.py has them"
    assert POLYGONS == import_.POLYGONS


def test_configs(capsys):
    names = config_names()
    files = [f for f in FOLDER.rglob("*.yaml") if not f.name.startswith("Base-")]
    assert len(names) == len(files) and names == sorted(names)
    assert [name for name in names if len(config_purpose(name)) < 20] == []
    assert not cli.call("configs", ["Panoptic", "coco", "ocr_R_50_3x"])
    assert capsys.readouterr().out.splitlines() == [
        "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x",
        "    Panoptic-FPN + OCR on COCO, ResNet-50, 3x schedule",
    ]
    assert cli.call("configs", ["cocco"]) == 1
    assert capsys.readouterr().out == "No config's name contains cocco. Did you mean coco?\n"


WITHOUT_PYTORCH = """
import sys
for name in ("torch", "detectron2", "cv2"):
    sys.modules[name] = None  # importing it is an error
from ocr_panoptic.cli import run_command
fixtures, out = sys.argv[1:]
for name, *words in (
    ["import", "--from", "yolo-seg", "--name", "scenes", "--train", f"{fixtures}/yolo/data.yaml"]
    + ["--split", "0.7", "--output", f"{out}/scenes", "--workers", "1"],
    ["check", f"{out}/scenes/scenes.yaml"],
):
    try:
        run_command(name, words)
    except SystemExit as end:
        assert not end.code, (name, end.code)
"""


@pytest.mark.slow
def test_data_are_imported_and_checked_without_pytorch(tmp_path):
    command = [sys.executable, "-c", WITHOUT_PYTORCH, FIXTURES, tmp_path]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert not done.returncode, done.stdout + done.stderr
    assert "scenes_train: 2 images" in done.stdout and "scenes_val: 1 images" in done.stdout


# This runs in its own process, because tests register backbones.
KEYS_PAGE = """
import runpy
from detectron2.config import get_cfg
from ocr_panoptic import add_ocr_config
add_ocr_config(get_cfg())  # registers what configs name
from detectron2.modeling import BACKBONE_REGISTRY, META_ARCH_REGISTRY, SEM_SEG_HEADS_REGISTRY
for name in ("build_dilated_resnet_backbone", "build_timm_backbone"): BACKBONE_REGISTRY.get(name)
for name in ("OCRSemanticSegmentor", "SegFix"): META_ARCH_REGISTRY.get(name)
for name in ("ContextSemSegHead", "OCRSemSegFPNHead"): SEM_SEG_HEADS_REGISTRY.get(name)
from detectron2.utils.file_io import PathManager
assert {"package://", "timm://"} <= PathManager._path_handlers.keys()
runpy.run_path("tools/keys_page.py", run_name="__main__")
"""


@pytest.mark.slow
def test_a_new_process_registers_everything_and_prints_the_page_of_keys():
    command = [sys.executable, "-c", KEYS_PAGE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    page = done.stdout
    assert not done.returncode, done.stderr
    assert "Warning" not in done.stderr  # of other packages
    assert page == (ROOT / "docs/keys.md").read_text(), "python tools/keys_page.py > docs/keys.md"
    paths = re.findall(r"\]\((?!https)(.+?)\)", page)
    assert paths and all((ROOT / "docs" / path).is_file() for path in paths)


def test_the_page_has_every_command():
    rows = [row for row in (ROOT / "docs/commands.md").read_text().splitlines() if row[:3] == "| `"]
    named = {word for row in rows for word in row.split("|")[1].replace("`", "").split(", ")}
    assert {word.strip() for word in named} == {*COMMANDS}
