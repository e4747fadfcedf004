"""The snippets and the example files of docs/detectron2.md run, in the order of the page."""

import json
import re
import runpy
import shlex
import shutil
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import yaml
from detectron2 import model_zoo
from detectron2.config import get_cfg
from detectron2.modeling import build_model
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from PIL import Image
from torch import nn

import ocr_panoptic
from ocr_panoptic.cli import call
from ocr_panoptic.errors import UserError
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from ocr_panoptic.modeling.losses import LOSSES
from support.tiny_runs import ROOT, TINY, TINY_OCR

PAGE = (ROOT / "docs/detectron2.md").read_text(encoding="utf-8")
FENCED_OR_COMMANDS = r"^```\w+\n(.*?)^```$|^((?:    [^\n]*\n)+)"
BLOCKS = [a or b for a, b in re.findall(FENCED_OR_COMMANDS, PAGE, re.MULTILINE | re.DOTALL)]
EXAMPLES = ROOT / "examples/detectron2_project"
ZOO = Path("configs/COCO-PanopticSegmentation/panoptic_fpn_R_50_3x.yaml")
COMBINE = "MODEL.PANOPTIC_FPN.COMBINE"
SMALL = [*TINY, *TINY_OCR, "MODEL.WEIGHTS", "", "MODEL.RESNETS.NORM", "BN"]
SMALL += ["SOLVER.WARMUP_ITERS", "0", "SOLVER.BASE_LR", "0.001", "INPUT.MASK_FORMAT", "bitmask"]
SMALL += ["MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0", "SEED", "1"]
SMALL += [f"{COMBINE}.STUFF_AREA_LIMIT", "64", f"{COMBINE}.INSTANCES_CONFIDENCE_THRESH", "0.0"]


@pytest.fixture
def project(tiny_root, tmp_path, monkeypatch, clean_catalog) -> Path:
    """Make a folder with Detectron2's configs and images, and undo what the snippets register."""
    shutil.copytree(Path(model_zoo.get_config_file("Base-RCNN-FPN.yaml")).parent, "configs")
    (tmp_path / "city").symlink_to(tiny_root / "tiny/raw")
    for split in ("train", "val"):
        labels = tmp_path / "town" / split / "labels"
        shutil.copytree(tmp_path / "city" / split / "semantic", labels)
        shutil.copytree(tmp_path / "city" / split / "images", labels.with_name("images"))
        for path in labels.iterdir():
            values = np.array(Image.open(path))
            values[values == 255] = 11
            Image.fromarray(values).save(path)
    for file in EXAMPLES.iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "photos").mkdir()
    shutil.copy(tmp_path / "city/val/images/val_00000.jpg", tmp_path / "photos/street.jpg")
    modules = {*sys.modules}
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules.keys() - modules if name.startswith("my_")]:
        del sys.modules[name]
    CONTEXT_SCHEMES.pop("Mean", None)
    LOSSES.pop("smooth", None)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


def shrink_the_zoo() -> None:
    """Make the networks and schedules of the page's configs small, through their base."""
    content = yaml.safe_load(ZOO.read_text())
    for key, value in zip(SMALL[::2], SMALL[1::2], strict=True):
        *sections, name = key.split(".")
        node = content
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    ZOO.write_text(yaml.safe_dump(content))


def run_commands(text: str, monkeypatch) -> dict:
    """Run a block of commands, and return the names that its scripts define."""
    names: dict = {}
    for line in textwrap.dedent(text).replace("\\\n", " ").splitlines():
        program, name, *words = shlex.split(line)
        if program == "ocr-panoptic":
            call(name, words)
        else:
            monkeypatch.setattr(sys, "argv", [name, *words])
            names |= runpy.run_path(name, run_name="__main__")
    return names


def run_block(text: str, monkeypatch) -> dict:
    """Write a block that names its file, run any other block; return the names that it defines."""
    names: dict = {}
    if file := re.match(r"# (\S+\.(?:py|yaml))\n", text):
        Path(file[1]).write_text(text)
    elif "(ResumableTrainer)" in text:
        script = (ROOT / "train_net.py").read_text()
        script, count = re.subn(
            r"^class Trainer\(.*?^(?=def )", lambda _: text + "\n\n", script, flags=re.M | re.S
        )
        assert count == 1
        Path("my_train_net.py").write_text(script)
    elif text.startswith("    "):
        names = run_commands(text, monkeypatch)
    else:
        exec(compile(text, "docs/detectron2.md", "exec"), names)
    return names


def test_the_page_names_every_example():
    for file in {*EXAMPLES.iterdir()} - {EXAMPLES / "ocr.yaml"}:
        assert f"](../examples/detectron2_project/{file.name})" in PAGE
    assert (EXAMPLES / "ocr.yaml").read_text() in PAGE


@pytest.mark.slow
def test_the_page(project, monkeypatch, capsys):
    names, printed = [], []
    for text in BLOCKS:
        names.append(run_block(text, monkeypatch))
        printed.append(capsys.readouterr().out)
        if text.startswith("# ocr.yaml"):
            check_the_head(names[0]["network"])
            shrink_the_zoo()

    found = {key: value for block in names for key, value in block.items()}
    assert found["network"].sem_seg_head.context.out_channels == 512  # of LazyConfig
    assert shapes(found["network"].sem_seg_head) == shapes(names[0]["network"].sem_seg_head)
    assert found["coarse"].shape == found["refined"].shape == (2, 19, 32, 64)
    (checked,) = (text for text in printed if "town_train" in text)
    assert "city_train  8" in checked and "town_val    4" in checked

    assert any("iteration 2" in text for text in printed)
    metrics = json.loads(Path("output/city/inference/city_val/metrics.json").read_text())
    assert metrics["own"]["segments"] > 0 and metrics["panoptic_seg"]["PQ"] >= 0
    trainer = found["trainer"]  # after the last of three iterations, the polynomial is 0
    assert trainer.iter == 3 and trainer.optimizer.param_groups[0]["lr"] == 0
    assert Path("output/plain/model_final.pth").is_file()

    result = ocr_panoptic.load("output/city", **{"TEST.PRECISION": "float32"}).predict(
        "photos/street.jpg"
    )
    np.testing.assert_array_equal(found["segments"], result.ids)
    of_kind = [("stuff_classes", "thing_classes")[i["isthing"]] for i in found["infos"]]
    classes = zip(of_kind, found["infos"], strict=True)
    shown = [found["metadata"].get(kind)[info["category_id"]] for kind, info in classes]
    assert shown and shown == [segment["name"] for segment in result.segments]
    assert Image.open("drawn.png").size == result.image.shape[1::-1]

    assert type(ocr_panoptic.load("output/mean").module.sem_seg_head.context).__name__ == "Mean"
    with pytest.raises(UserError, match=r"BACKBONE.NAME is .?mine.* with --import"):
        ocr_panoptic.build("city_ocr.yaml", **{"MODEL.BACKBONE.NAME": "mine"})
    del CONTEXT_SCHEMES["Mean"]
    with pytest.raises(UserError, match=r"CONTEXT.NAME is .?Mean.* with --import"):
        ocr_panoptic.load("output/mean")
    del LOSSES["smooth"]
    with pytest.raises(UserError, match=r"LOSS_TYPE is .?smooth.* with --import"):
        ocr_panoptic.build("output/mean", **{"MODEL.CONTEXT.NAME": "none"})
    assert [path.name for path in Path("predicted/panoptic").iterdir()] == ["street.png"]


def check_the_head(network: nn.Module) -> None:
    """Check that ocr.yaml gives Detectron2's PanopticFPN the head of this project's config."""
    cfg = get_cfg()
    ocr_panoptic.add_ocr_config(cfg)
    cfg.merge_from_file("ocr.yaml")
    cfg.MODEL.DEVICE = "cpu"
    own = build_model(cfg)
    assert type(own) is PanopticFPN and shapes(own) == shapes(network)
    weights = cfg.MODEL.SEM_SEG_HEAD.LOSS_WEIGHT, cfg.MODEL.OCR.COARSE_LOSS_WEIGHT
    criterion = network.sem_seg_head.criterion
    assert weights == (criterion.loss_weight, criterion.coarse_loss_weight)
