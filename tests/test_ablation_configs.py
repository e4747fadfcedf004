"""Ablations differ from the OCR config beside them in the keys of the scheme alone."""

import re
import shlex
from pathlib import Path
from string import Template

import pytest
from test_configs import CONFIGS, differences, load

from ocr_panoptic.engine import load_config
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES

ABLATIONS = sorted(CONFIGS.rglob("ablations/*.yaml"))
DOC = Path(__file__).resolve().parents[1] / "docs/paper_tables.md"


@pytest.mark.parametrize("path", ABLATIONS, ids=lambda p: p.stem)
def test_differs_in_the_scheme_alone(path):
    base = re.search(r'_BASE_: "(.*)"', path.read_text())[1]
    assert re.fullmatch(r"\.\./(panoptic_fpn_)?ocr_R_\w+\.yaml", base)
    changed = differences(load(path.parent / base), load(path))
    changed.pop("OUTPUT_DIR", None)
    if path.stem.startswith("ocr_unsupervised_regions"):
        assert changed == {"MODEL.OCR.REGION_SUPERVISION": (True, False)}
        return
    assert set(changed) == {"MODEL.CONTEXT.NAME"}
    old, new = changed["MODEL.CONTEXT.NAME"]
    assert old == "OCR" and new in CONTEXT_SCHEMES
    # The file is named after the scheme and, as its base, after network and schedule.
    name = path.stem.removeprefix("panoptic_fpn_")
    schedule = base.removeprefix("../").removeprefix("panoptic_fpn_").removeprefix("ocr_")
    assert name == f"{new.lower().replace('-', '_')}_{schedule.removesuffix('.yaml')}"


def test_outputs_are_apart():
    folders = [load(p).OUTPUT_DIR for p in ABLATIONS]
    assert len(set(folders)) == len(ABLATIONS)
    assert all(p.stem in folder for p, folder in zip(ABLATIONS, folders))


def test_the_table_of_the_paper_names_every_ablation_and_nothing_else():
    """Every config that docs/paper_tables.md names exists, and every ablation is in it."""
    named = {CONFIGS / name for name in re.findall(r"configs/([\w./-]+\.yaml)", DOC.read_text())}
    assert [p for p in named if not p.exists()] == []
    assert set(ABLATIONS) - named == set()


def test_the_commands_of_the_tables_are_configs_with_a_scheme():
    """Each training command of the shell block loads, for every scheme of its table, and differs
    from its config in scheme, weights and folder alone."""
    (block,) = re.findall(r"```sh\n(.*?)```", DOC.read_text(), re.S)
    variables = dict(re.findall(r"^(\w+)=(.*)$", block, re.M))
    commands = [line for line in block.splitlines() if line.startswith("python train_net.py")]
    trainings = [c for c in commands if "--eval-only" not in c]
    assert len(trainings) == 5 and len(commands) == 6
    schemes = re.findall(r"^\| `([\w-]+)` \| `configs/", DOC.read_text(), re.M)
    assert len(schemes) == 7
    for scheme in schemes:
        names = {**variables, "S": scheme, "O": f"output/{scheme}"}
        for command in trainings:
            args = shlex.split(Template(command).substitute(names))
            path = CONFIGS.parent / args[args.index("--config-file") + 1]
            cfg = load_config(str(path), args[args.index("--config-file") + 2 :])
            assert scheme == cfg.MODEL.CONTEXT.NAME
            keys = {"MODEL.CONTEXT.NAME", "MODEL.WEIGHTS", "OUTPUT_DIR", "MODEL.DEVICE"}
            assert set(differences(load(path), cfg)) <= keys
