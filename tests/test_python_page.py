"""The code of docs/python.md runs."""

import re
import shutil

import pytest
from PIL import Image

from support.tiny_runs import ROOT, SEGMENTS

PAGE = (ROOT / "docs/python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_blocks(tiny_data, trained, tmp_path, monkeypatch, capsys):
    trained(*SEGMENTS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "output").mkdir()
    (tmp_path / "run").rename(tmp_path / "output/city")
    scenes = tiny_data / "tiny"
    shutil.copytree(scenes / "raw/val/images", tmp_path / "photos")
    Image.open(sorted((tmp_path / "photos").iterdir())[0]).save(tmp_path / "street.jpg")
    shutil.copytree(scenes / "raw", tmp_path / "raw")
    (data,) = scenes.glob("tiny.yaml")
    (tmp_path / "city.yaml").write_text(data.read_text().replace("name: tiny", "name: city"))
    names: dict = {}
    for block in BLOCKS:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert len(BLOCKS) == 3
    assert {path.name for path in (tmp_path / "predicted").iterdir()} == {
        *("labels", "confidence", "panoptic", "overlays", "coco")
    }
    assert len([*(tmp_path / "predicted/coco").iterdir()]) == 4
    assert (tmp_path / "output/second/model_final.pth").is_file()
    shown = capsys.readouterr().out
    assert "Panoptic quality on city_val" in shown and "Learning rates" in shown
