"""datasets/README.md names what exists, and its format example passes the check."""

import json
import re
import textwrap
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.data_file import PanopticSplit, read_data_file, write_data_file
from ocr_panoptic.data.published.splits import NAMED_SPLITS
from ocr_panoptic.data.semantic.label_space import parse_label_space
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "datasets" / "README.md").read_text()


def test_every_script_named_exists():
    named = set(re.findall(r"[\w/]+\.py", README))
    named -= {"prepare_panoptic_fpn.py"}  # Detectron2's
    named -= {"prepare_ade20k_pan_seg.py", "datasets/prepare_ade20k_pan_seg.py"}  # Mask2Former's
    assert len(named) >= 4
    for name in named:
        assert (ROOT / name).is_file() or (ROOT / "datasets" / name).is_file(), name
    assert {path.name for path in (ROOT / "datasets").glob("*.py")} <= {
        Path(name).name for name in named
    }


def test_every_link_leads_somewhere():
    headings = re.findall(r"^#+ (.*)$", README, re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(#([\w-]+)\)", README)
    assert links
    assert set(links) <= anchors


def test_format_example(tmp_path, clean_catalog):
    example = json.loads(re.search(r"^      \{\n.*?^      \}\n", README, re.M | re.S).group())
    (image,), (annotation,) = example["images"], example["annotations"]
    (segment,) = annotation["segments_info"]
    x, y, width, height = segment["bbox"]
    ids = np.zeros((image["height"], image["width"]), int)
    box = ids[y : y + height, x : x + width]
    box[0], box[:, 0] = segment["id"], segment["id"]  # touches every side, then fill up
    box[-1, -1] = segment["id"]
    empty = np.flatnonzero(box.ravel() == 0)[: segment["area"] - np.count_nonzero(box)]
    box[np.unravel_index(empty, box.shape)] = segment["id"]
    for folder in ("images/a", "pngs/a"):
        (tmp_path / folder).mkdir(parents=True)
    Image.new("RGB", ids.shape[::-1]).save(tmp_path / "images" / image["file_name"])
    write_panoptic_png(tmp_path / "pngs" / annotation["file_name"], ids)
    (tmp_path / "panoptic.json").write_text(json.dumps(example))
    split = PanopticSplit(tmp_path / "images", tmp_path / "panoptic.json", tmp_path / "pngs")
    write_data_file(tmp_path / "city.yaml", "city", {"train": split})
    check_data([tmp_path / "city.yaml"], workers=1)


def test_data_file_examples(tmp_path):
    """Data files of both pages are read, with the splits that they name."""
    pages = README + (ROOT / "README.md").read_text()
    examples = re.findall(r"^    name: .*\n(?:    .*\n)+", pages, re.MULTILINE)
    kinds = []
    for example in examples:
        text = textwrap.dedent(example)
        # The page shows the classes of semantic data apart.
        whole = text if "panoptic" in text or "classes" in text else text + "classes: [a]\n"
        (tmp_path / "a.yaml").write_text(whole)
        file = read_data_file(tmp_path / "a.yaml")
        kinds.append(file.kind)
        assert set(file.splits) == {"train", "val"}
    assert kinds == ["panoptic", "semantic", "panoptic"]


def test_class_file_examples():
    pattern = r"^      classes:.*\n(?:        .*\n)*(?:      \w+:.*\n)*"
    examples = re.findall(pattern, README, re.M)
    arms, camvid = (parse_label_space(yaml.safe_load(example), "README") for example in examples)
    assert arms.label_map == {7: 0, 24: 1, 25: 1, 26: 2, 0: 255, 255: 255}
    assert arms.flip_pairs == ((1, 2),)
    assert len(camvid.classes) == 11
    assert camvid.label_map == {**{label: label for label in range(11)}, 11: 255}


def test_every_named_data_set_is_in_the_table():
    page, named = (ROOT / "docs/published_data.md").read_text(), set()
    for pattern in re.findall(r"`(\w+(?:\{[\w,]+\})?_sem)`", page):
        start, _, rest = pattern.partition("{")
        choices, _, end = rest.partition("}")
        named |= {start + choice + end for choice in choices.split(",")} if rest else {pattern}
    assert named == set(NAMED_SPLITS)
