"""Damaged and hostile files of annotation tools: an import, or a message and nothing written."""

import os
import random
import shutil
from pathlib import Path

import pytest

from ocr_panoptic.data import AnnotationSource, ImportPlan, import_annotations
from support.fuzz import breach, mutated_bytes, mutated_json, run_trials
from support.tool_exports import EXPORTS, KINDS

TRIALS = int(os.getenv("OCR_PANOPTIC_FUZZ_TRIALS", "30"))
SECONDS = float("inf") if "OCR_PANOPTIC_FUZZ_TRIALS" in os.environ else 1
SEED = int(os.getenv("OCR_PANOPTIC_FUZZ_SEED", "0"))

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_catalog", "hostile_files")]

CVAT_SHAPES = """
    <polygon label="ball" points="2.5,3;20,4;9.5,20" z_order="2" group_id="1"/>
    <box label="crate" xtl="30" ytl="5" xbr="40" ybr="15" rotation="20"/>
    <ellipse label="ball" cx="20" cy="30" rx="8" ry="5" rotation="10" group_id="1"/>
</image>"""


@pytest.mark.parametrize(
    "format, source",
    [
        ("cvat", "cvat.xml"),
        ("labelme", "labelme"),
        ("labelme", "labelme_shapes"),
        ("label-studio", "label_studio.json"),
    ],
)
def test_formats(tmp_path, format, source):
    shutil.copytree(EXPORTS, tmp_path / "source")
    path = tmp_path / "source" / source
    if format == "cvat":
        path.write_text(path.read_text().replace("</image>", CVAT_SHAPES))
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    sources = {"train": AnnotationSource(path, tmp_path / "source/images")}
    plan, output = ImportPlan(format, KINDS), tmp_path / "data/x"

    def trial(rng: random.Random) -> str | None:
        file = rng.choice(files)
        original = file.read_bytes()
        file.write_bytes(mutated(file, rng))
        names = (str(tmp_path), "lists of --things", "No class is a thing")
        result = breach(
            lambda: import_annotations("x", sources, plan, output, workers=1),
            tmp_path / "data",
            names,
        )
        file.write_bytes(original)
        shutil.rmtree(output, ignore_errors=True)
        return result

    import_annotations("x", sources, plan, output, workers=1)
    shutil.rmtree(output)
    found = run_trials(TRIALS, SEED, trial, tmp_path / "canary", SECONDS)
    assert not found, f"{len(found)} kinds:\n" + "\n\n".join(found.values())


def mutated(path: Path, rng: random.Random) -> bytes:
    mutate = mutated_json if path.suffix == ".json" else mutated_bytes
    return mutate(path.read_bytes(), rng)
