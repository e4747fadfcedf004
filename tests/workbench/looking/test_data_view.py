"""The page about a data set: counts compared with loops over the files, faults, pictures."""

import base64
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from ocr_panoptic.cli import call
from ocr_panoptic.data.catalog import register_data_sets
from ocr_panoptic.data.data_file import PanopticSplit, write_data_file
from ocr_panoptic.workbench.looking.data_view import class_rows, data_classes, view_image


@pytest.fixture
def registered(tiny_data, clean_catalog) -> Path:
    register_data_sets([tiny_data / "tiny/tiny.yaml", tiny_data / "tiny/tiny_sem.yaml"])
    return tiny_data


def look(name: str) -> tuple[list, list]:
    metadata = MetadataCatalog.get(name)
    classes, label_map = data_classes(metadata), metadata.get("label_map")
    seen = [view_image(record, classes, label_map) for record in DatasetCatalog.get(name)]
    return seen, class_rows(classes, seen)


def test_counts_equal_the_files(registered):
    seen, rows = look("tiny_train")
    raw = registered / "tiny/raw/train"
    content = json.loads((raw / "panoptic.json").read_text())
    areas: dict[int, list[int]] = {c["id"]: [] for c in content["categories"]}
    images = dict.fromkeys(areas, 0)
    void = []
    for annotation in content["annotations"]:
        rgb = np.asarray(Image.open(raw / "panoptic" / annotation["file_name"])).astype(int)
        ids = rgb @ [1, 256, 65536]
        void.append((ids == 0).sum())
        for segment in annotation["segments_info"]:
            areas[segment["category_id"]].append((ids == segment["id"]).sum())
        for category in {s["category_id"] for s in annotation["segments_info"]}:
            images[category] += 1
    total = sum(map(sum, areas.values()))
    by_name = {row["name"]: row for row in rows}
    assert sorted(void) == sorted(one.void for one in seen) and sum(void) > 0
    assert len(rows) == len(content["categories"])
    for category in content["categories"]:
        own = areas[category["id"]]
        assert by_name[category["name"]] == {
            "name": category["name"],
            "kind": "thing" if category["isthing"] else "stuff",
            "color": "rgb({},{},{})".format(*category["color"]),
            "images": images[category["id"]],
            "segments": len(own),
            "share": pytest.approx(100 * sum(own) / total),
            "area": np.median(own) if own else None,
        }


def test_labels_equal_the_files(registered):
    """The label that covers most of an image has its colour over the grey image."""
    seen, rows = look("tiny_sem_val")
    files = [r["sem_seg_file_name"] for r in DatasetCatalog.get("tiny_sem_val")]
    labels = [np.asarray(Image.open(file)) for file in files]
    counts = np.array([np.bincount(one.ravel(), minlength=256)[:9] for one in labels])
    assert [row["images"] for row in rows] == (counts > 0).sum(axis=0).tolist()
    share = 100 * counts.sum(axis=0) / counts.sum()
    assert [row["share"] for row in rows] == pytest.approx(share)
    picture, drawn = (
        np.asarray(Image.open(io.BytesIO(base64.b64decode(src.split(",")[1])))).astype(float)
        for src in (seen[0].image, seen[0].truth)
    )
    label = counts[0].argmax()
    color = np.array(MetadataCatalog.get("tiny_sem_val").stuff_colors[label])
    expected = 0.6 * color + 0.4 * picture.mean(axis=2, keepdims=True)
    difference = np.abs(drawn - expected).max(axis=2)[labels[0] == label]
    assert np.median(difference) < 6 and picture.shape == drawn.shape == (64, 64, 3)


def test_broken_files_are_listed(tiny_root, tmp_path, clean_catalog, capsys):
    """The page lists them with escaped names."""
    folder = tmp_path / "<b> & 100%"
    shutil.copytree(tiny_root / "tiny/raw/val", folder)
    images = sorted((folder / "images").iterdir())
    content = json.loads((folder / "panoptic.json").read_text())
    content["categories"][0]["name"] = "</script><script>x"
    content["annotations"][2]["segments_info"][0]["area"] = 1
    (folder / "panoptic.json").write_text(json.dumps(content))
    split = PanopticSplit(folder / "images", folder / "panoptic.json", folder / "panoptic")
    write_data_file(tmp_path / "odd.yaml", "odd", {"val": split})
    images[0].write_bytes(images[0].read_bytes()[:300])
    images[1].unlink()
    page = tmp_path / "page.html"
    words = ["--dataset", "odd_val", "--data", str(tmp_path / "odd.yaml"), "--workers", "1"]
    call("view", [*words, "--output", str(page)])
    assert "3 faults; the page lists them" in capsys.readouterr().out
    html = page.read_text()
    assert "<h2>Faults: 3</h2>" in html and html.count("<figure") == 2 and "area is 1 in" in html
    assert "broken or truncated" in html and images[1].name in html.partition("classes")[0]
    assert "<script>x" not in html and "&lt;/script&gt;&lt;script&gt;x" in html


def test_the_command(registered, tmp_path, capsys):
    """The shown images are spread evenly; the page loads no other file."""
    page = tmp_path / "out/page.html"
    words = ["--dataset", "tiny_train", "--output", str(page), "--num-images", "3"]
    call("view", [*words, "--workers", "1"])
    assert f"Wrote the page {page}" in capsys.readouterr().out
    html = page.read_text()
    names = [Path(r["file_name"]).name for r in DatasetCatalog.get("tiny_train")]
    assert re.findall('alt="Truth of (.*?)"', html) == [names[k] for k in (0, 3, 7)]
    assert "3 of 8 images, 64 x 64 pixels;" in " ".join(html.split())
    assert all(source.startswith("data:") for source in re.findall('src="(.*?)"', html))
    for name in ("nothing_train", "coco_2017_test-dev"):
        with pytest.raises((ValueError, FileNotFoundError)):
            call("view", ["--dataset", name, "--output", str(page)])
