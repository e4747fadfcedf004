"""docs/tutorial.md: its program converts masks, its commands and links are understood; so are the
commands of docs/imports.md."""

import json
import re
import runpy
import shlex
import sys
import textwrap
from importlib import import_module

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask

from ocr_panoptic.engine import load_config
from ocr_panoptic.engine.config_files import find_config
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS
from support.tiny_runs import ROOT

FILE = ROOT / "docs/tutorial.md"
PAGE = FILE.read_text(encoding="utf-8")
IMPORTS = (ROOT / "docs/imports.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    ocr-panoptic ((?:.*\\\n)*.*)", PAGE + IMPORTS, re.MULTILINE)


def test_masks_become_coco_instances(tmp_path, monkeypatch):
    objects = np.zeros((2, 5, 7), bool)
    objects[0, 1:3, 2:6] = objects[1, 4, :3] = True
    for folder in ("photos/a/images", "photos/a/masks"):
        (tmp_path / folder).mkdir(parents=True)
    Image.new("RGBA", (7, 5)).save(tmp_path / "photos/a/images/a.png")
    for name, inside in zip("xy", objects, strict=True):
        Image.fromarray(inside.astype(np.uint8) * 255).save(tmp_path / f"photos/a/masks/{name}.png")
    program = re.search(r"^    import json.*?(?=\n\n## )", PAGE, re.MULTILINE | re.DOTALL).group()
    (tmp_path / "masks_to_coco.py").write_text(textwrap.dedent(program))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["masks_to_coco.py", "photos"])
    runpy.run_path("masks_to_coco.py")
    written = json.loads((tmp_path / "nuclei.json").read_text())
    assert written["images"] == [{"id": 0, "file_name": "a/images/a.png", "width": 7, "height": 5}]
    assert [a["image_id"] for a in written["annotations"]] == [0, 0]
    decoded = [mask.decode(a["segmentation"]) for a in written["annotations"]]
    np.testing.assert_array_equal(decoded, objects)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(line):
    command, *words = shlex.split(line.replace("\\\n", " "))
    name = {"import": "import_"}.get(command, command.replace("-", "_"))
    module = import_module(f"ocr_panoptic.cli.{name}")
    args = module.argument_parser().parse_args(words)
    assert callable(module.run) and vars(args)
    if command in ("train", "compare"):  # unknown keys are refused
        assert load_config(find_config(args.config_file), args.opts).MODEL.META_ARCHITECTURE


def test_links():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGE) if "://" not in link]
    assert len(links) > 5
    for link in links:
        page, _, anchor = link.partition("#")
        file = (FILE.parent / page) if page else FILE
        assert file.is_file(), link
        headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        named = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in headings}
        assert not anchor or anchor in named, link


@pytest.mark.parametrize("name", [*ANNOTATION_FORMATS])
def test_a_format_of_annotations_has_a_row(name):
    row = rf"^\| [^|]*`{name}`[^|]* \|"
    assert re.search(row, IMPORTS, re.MULTILINE), f"docs/imports.md has no row of {name}"
