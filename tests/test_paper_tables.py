"""docs/paper_tables.md: the config and the keys of each row do what the row says."""

import re
import shlex
from pathlib import Path
from string import Template

import pytest
from detectron2.config import CfgNode

from ocr_panoptic.engine import load_config
from support.loaded_configs import CONFIGS, differences, load

DOC = (Path(__file__).resolve().parents[1] / "docs/paper_tables.md").read_text()
PATH = r"`([\w-]+/[\w/-]+)`"

# What a row, or the text above its table, calls the training set of a config and the iterations.
DATA = {
    "cityscapes_fine_train_sem": "Cityscapes val",
    "cityscapes_fine_trainval_sem": "Cityscapes test",
    "mapillary_vistas_train_sem": "Mapillary",
    "ade20k_train_sem": "ADE20K val",
    "lip_train_sem": "LIP val",
    "pascal_context_59_train_sem": "PASCAL-Context test",
    "coco_stuff_10k_train_sem": "COCO-Stuff test",
    "coco_2017_train_panoptic_separated": "COCO val2017, 3x",
}
# How a row that is not OCR ends, and its scheme.
SCHEMES = {
    "baseline": "none",
    "DA scheme": "DA-OCR",
    "ACF scheme": "ACF-OCR",
    "GT-OCR": "GT-OCR",
    "PPM": "PPM",
    "ASPP": "ASPP",
}


def network(cfg: CfgNode) -> str:
    if "resnet" in cfg.MODEL.BACKBONE.NAME:
        return f"ResNet-{cfg.MODEL.RESNETS.DEPTH}"
    return {"hrnet_w48": "HRNet-W48"}[cfg.MODEL.TIMM.NAME]


def rows() -> list[tuple[str, dict[str, str]]]:
    """(heading and text above the table, cells by column) of each row that names a config."""
    found, above = [], ""
    for section in re.split(r"^## ", DOC, flags=re.M)[1:]:
        said, *table = section.split("\n|")
        if not table or "config" not in table[0]:
            continue
        columns, _, *lines = ([cell.strip() for cell in line.split("|")] for line in table)
        for line in lines:
            row = dict(zip(columns, line))
            above = row["config"] = row["config"].replace("the same, then", above)
            found.append((said, row))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "said, row", [pytest.param(*r, id=f"{r[0].partition(':')[0]}, {r[1]['row']}") for r in rows()]
)
def test_rows(said, row):
    keys = shlex.split(row.get("keys", "").strip("`"))
    files = re.findall(PATH, row["config"])
    cfgs = [load(file, *keys) for file in files]
    for file, cfg in zip(files, cfgs):
        assert set(differences(load(file), cfg)) == set(keys[::2])  # each has an effect
    for before, after in zip(cfgs, cfgs[1:]):
        weights = f"{before.OUTPUT_DIR}/model_final.pth"
        assert weights == after.MODEL.WEIGHTS
    for cfg in cfgs:
        assert network(cfg) in said + row["row"]
        assert DATA[cfg.DATASETS.TRAIN[0]] in said + row["row"]
        assert ("3x" in said) == (cfg.SOLVER.MAX_ITER == 270_000)
    head = cfg.MODEL.SEM_SEG_HEAD.NAME
    if row["row"].endswith("Panoptic-FPN"):
        assert head == "SemSegFPNHead"
        return
    assert head == ("OCRSemSegFPNHead" if "panoptic" in said else "ContextSemSegHead")
    scheme = next((s for words, s in SCHEMES.items() if row["row"].endswith(words)), "OCR")
    assert scheme == cfg.MODEL.CONTEXT.NAME
    supervised = row["row"] != "w/o supervision"
    assert supervised == cfg.MODEL.OCR.REGION_SUPERVISION
    assert (scheme == "none") == (cfg.MODEL.OCR.DROPOUT == 0.1)


def test_rows_are_all_there():
    """Rows of table 1, figure 1, tables 5 and 6 are there; what coarse data add is in
    semantic_segmentation.md."""
    assert len(rows()) == 4 + 12 + 14 + 8
    trainings = {row["row"]: len(re.findall(PATH, row["config"])) for _, row in rows()}
    assert {row: number for row, number in trainings.items() if number > 1} == {
        "HRNet-W48, Mapillary, Cityscapes test": 2,
        "HRNet-W48, Mapillary, Cityscapes test w/ coarse": 2,
    }


def test_configs_in_the_text_exist():
    assert all((CONFIGS / f"{name}.yaml").is_file() for name in re.findall(PATH, DOC))


@pytest.mark.slow
def test_the_commands_of_the_schemes():
    """Each training command loads, for every scheme of the table, and differs from its config in
    scheme and folder alone, a stage with coarse data in its weights, data and solver as well; the
    keys of the evaluation exist."""
    (block,) = re.findall(r"```sh\n(.*?)```", DOC, re.S)
    variables = dict(re.findall(r"^(\w+)=(.*)$", block, re.M))
    commands = [line for line in block.splitlines() if line.startswith("python train_net.py")]
    schemes = re.findall(r"^\| `([\w-]+)` \|", DOC, re.M)
    assert (len(commands), len(schemes)) == (7, 7)
    for scheme in schemes:
        names = {**variables, "S": scheme, "O": f"output/{scheme}"}
        for command in commands:
            args = shlex.split(Template(command).substitute(names))
            opts = args[args.index("--config-file") + 2 :]
            if "--eval-only" in args:
                assert load_config("", opts).TEST.FLIP
                continue
            file = args[args.index("--config-file") + 1]
            file = file.removeprefix("configs/").removesuffix(".yaml")
            cfg = load(file, *opts)
            assert scheme == cfg.MODEL.CONTEXT.NAME
            keys = {"MODEL.CONTEXT.NAME", "OUTPUT_DIR"}
            if "MODEL.WEIGHTS" in opts:
                keys |= {"MODEL.WEIGHTS", "DATASETS.TRAIN", "SOLVER.BASE_LR", "SOLVER.MAX_ITER"}
            assert set(differences(load(file), cfg)) <= keys
