"""The page about a data set: counts against loops over the files, planted faults, augmentation."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog
from PIL import Image

from generate_scenes import generate_scenes
from ocr_panoptic.data.data_file import PanopticSplit, write_data_file
from ocr_panoptic.data.register import register_data_files
from ocr_panoptic.engine import complete_config, load_config
from ocr_panoptic.engine.task import task_of
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png, write_panoptic_png
from ocr_panoptic.seeding import seeded_generators
from ocr_panoptic.workbench.looking import data_view
from ocr_panoptic.workbench.looking.augmented_samples import augmented_pictures
from ocr_panoptic.workbench.looking.data_items import data_items
from support.scripts import run_script
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG, TINY_SEMANTIC


@pytest.fixture
def registered(tiny_data, clean_catalog) -> Path:
    for name in ("tiny", "tiny_sem"):
        register_data_files([tiny_data / f"tiny/{name}.yaml"])
    return tiny_data


def page_of(name: str, output: Path, **options) -> data_view.DataPage:
    return data_view.write_data_page(name, output / "page.html", workers=1, **options)


@pytest.mark.slow
def test_counts_against_the_files(registered, tmp_path):
    page = page_of("tiny_train", tmp_path)
    raw = registered / "tiny/raw/train"
    content = json.loads((raw / "panoptic.json").read_text())
    areas: dict[int, list[int]] = {}
    images: dict[int, set[str]] = {}
    best: dict[int, list[int]] = {}  # the largest segment of each image
    void = pixels = 0
    without = set()
    things = {c["id"] for c in content["categories"] if c["isthing"]}
    for annotation in content["annotations"]:
        rgb = np.asarray(Image.open(raw / "panoptic" / annotation["file_name"])).astype(int)
        ids = rgb @ [1, 256, 65536]
        void += (ids == 0).sum()
        pixels += ids.size
        for segment in annotation["segments_info"]:
            k = segment["category_id"]
            areas.setdefault(k, []).append(int((ids == segment["id"]).sum()))
            images.setdefault(k, set()).add(annotation["file_name"])
        for k in {s["category_id"] for s in annotation["segments_info"]}:
            own = (s["id"] for s in annotation["segments_info"] if s["category_id"] == k)
            best.setdefault(k, []).append(max(int((ids == number).sum()) for number in own))
        if not {s["category_id"] for s in annotation["segments_info"]} & things:
            without.add(annotation["file_name"])
    total = sum(map(sum, areas.values()))
    for row, category in zip(page.classes, content["categories"], strict=True):
        own = areas.get(category["id"], [])
        assert (row.name, row.kind == "thing") == (category["name"], category["id"] in things)
        assert (row.segments, row.images) == (len(own), len(images.get(category["id"], ())))
        assert row.share == pytest.approx(100 * sum(own) / total)
        assert row.areas == (tuple(np.percentile(own, (10, 50, 90))) if own else None)
    assert page.cards["Images"] == "8" and page.cards["Void"] == f"{100 * void / pixels:.1f} %"
    assert page.empty.total == len(without) == sum(not i["things"] for i in page.images)
    assert page.sizes == [("64 x 64", 8, 100)]
    assert sum(i["segments"] for i in page.images) == sum(map(len, areas.values()))
    rare = [group.title for group in page.rare]
    assert (
        rare[0]
        == min((r for r in page.classes if r.images), key=lambda r: (r.images, r.share)).name
    )
    assert page.absent == [row.name for row in page.classes if not row.images]
    for group in page.rare:  # shown where they are largest
        (row,) = (r for r in content["categories"] if r["name"] == group.title)
        largest = sorted(best[row["id"]], reverse=True)[: len(group.crops)]
        assert [crop.caption for crop in group.crops] == [f"{area:,} pixels" for area in largest]


@pytest.mark.slow
def test_labels_against_the_files(registered, tmp_path):
    page = page_of("tiny_sem_val", tmp_path)
    labels = [
        np.asarray(Image.open(r["sem_seg_file_name"])) for r in DatasetCatalog["tiny_sem_val"]()
    ]
    counts = np.array([np.bincount(one.ravel(), minlength=256)[:9] for one in labels])
    assert [row.images for row in page.classes] == (counts > 0).sum(axis=0).tolist()
    share = 100 * counts.sum(axis=0) / counts.sum()
    assert [row.share for row in page.classes] == pytest.approx(share)
    assert page.empty is None and page.classes[0].segments is None
    assert [group.title for group in page.suspicious] == ["Tiny segments", "Segments at void"]
    html = (tmp_path / "page.html").read_text()
    assert (
        "Segments</th>" not in html
        and "things" not in html.partition("<script")[0].split("main>")[1]
    )


def test_a_sample_is_spread_evenly(registered):
    content = data_items("tiny_train", 3)
    assert content.total == 8
    names = [item.name for item in data_items("tiny_train").items]
    assert [item.name for item in content.items] == [names[k] for k in (0, 3, 7)]


@pytest.fixture
def planted(tmp_path, clean_catalog) -> Path:
    """Scenes with a tiny segment, a split thing, a split crowd, which is none, and an image of the
    training set in the other."""
    root = tmp_path / "data"
    generate_scenes(root / "odd", num_train=4, num_val=3, size=160, seed=3)
    raw = root / "odd/raw"
    edit(raw / "train", 0, 900001, (slice(80, 81), slice(40, 42)))  # 2 of 25600 pixels
    apart = (slice(5, 25), slice(5, 20)), (slice(130, 150), slice(135, 150))
    edit(raw / "train", 1, 900002, *apart)
    edit(raw / "train", 3, 900003, *apart, iscrowd=1)
    image = Image.open(sorted((raw / "train/images").iterdir())[2])
    image.resize((120, 120)).resize((160, 160)).save(
        sorted((raw / "val/images").iterdir())[1], quality=70
    )
    register_data_files([root / "odd/odd.yaml"])
    return raw


def edit(
    folder: Path, number: int, segment_id: int, *places: tuple[slice, slice], iscrowd: int = 0
) -> None:
    """Paint a ball in an image's PNG, and enter it in the JSON."""
    content = json.loads((folder / "panoptic.json").read_text())
    annotation = sorted(content["annotations"], key=lambda a: a["file_name"])[number]
    path = folder / "panoptic" / annotation["file_name"]
    ids = read_panoptic_png(path)
    for place in places:
        ids[place] = segment_id
    write_panoptic_png(path, ids)
    shown = set(np.unique(ids).tolist())
    annotation["segments_info"] = [
        {key: s[key] for key in ("id", "category_id", "iscrowd")}
        for s in annotation["segments_info"]
        if s["id"] in shown
    ] + [{"id": segment_id, "category_id": 1, "iscrowd": iscrowd}]
    (folder / "panoptic.json").write_text(json.dumps(content))


@pytest.mark.slow
def test_planted_faults_are_found(planted, tmp_path):
    page = page_of("odd_train", tmp_path, compared_with="odd_val")
    train, val = (
        [path.name for path in sorted((planted / split / "images").iterdir())]
        for split in ("train", "val")
    )
    assert page.findings == "page_findings.csv", "beside the page, where people find it"
    with open(tmp_path / page.findings) as file:
        rows = list(csv.DictReader(file))
    found = {(row["kind"], row["image"], row["segments"], row["other"]) for row in rows}
    assert ("tiny", train[0], "900001", "") in found
    assert ("split", train[1], "900002", "") in found
    assert not any("900003" in row[2] for row in found)
    assert [row for row in found if row[0] == "leak"] == [("leak", train[2], "", val[1])]
    assert (page.num_leaks, len(page.leaks), page.num_duplicates) == (1, 1, 0)
    assert page.leaks[0].second.title == val[1]
    groups = {group.title: group for group in page.suspicious}
    assert groups["Tiny segments"].crops[0].title == train[0]
    assert groups["Split things"].crops[0].title == train[1]
    by_name = {image["name"]: image for image in page.images}
    assert "tiny" in by_name[train[0]]["flags"] and "split" in by_name[train[1]]["flags"]
    sources = {crop.src for group in (*page.suspicious, *page.rare) for crop in group.crops}
    sources |= {crop.src for pair in page.leaks for crop in pair[:2]}
    for source in sources:
        with Image.open(tmp_path / source) as picture:
            assert max(picture.size) in (220, 160)
    # The marked segment is red in its picture.
    crop = np.asarray(Image.open(tmp_path / groups["Split things"].crops[0].src)).astype(int)
    red = (crop[..., 0] - crop[..., 1:].max(axis=-1)) > 60
    assert 0.01 < red.mean() < 0.3


@pytest.mark.slow
def test_the_page_is_whole_or_as_it_was(registered, tmp_path, monkeypatch):
    page_of("tiny_val", tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def fail(*_, **__):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(data_view, "write_text", fail)
        with pytest.raises(OSError, match="disk is full"):
            page_of("tiny_val", tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    page = page_of("tiny_val", tmp_path)
    (folder,) = (tmp_path / "page_files").iterdir()
    assert page.folder == f"page_files/{folder.name}"
    assert not {path for path in tmp_path.rglob("*") if path.is_file()} & (
        before.keys() - {tmp_path / "page.html", tmp_path / "page_findings.csv"}
    )
    with pytest.raises(ValueError, match="is a folder; name the page in it"):
        data_view.write_data_page("tiny_val", tmp_path)


def test_broken_files_are_listed(tiny_root, tmp_path, clean_catalog):
    """Broken files are listed, and what names and labels say is text on the page."""
    folder = tmp_path / "<b> & 100%"
    shutil.copytree(tiny_root / "tiny/raw/val", folder)
    images = sorted((folder / "images").iterdir())
    content = json.loads((folder / "panoptic.json").read_text())
    content["categories"][0]["name"] = "</script><script>x"
    (folder / "panoptic.json").write_text(json.dumps(content))
    split = PanopticSplit(folder / "images", folder / "panoptic.json", folder / "panoptic")
    write_data_file(tmp_path / "odd.yaml", "odd", {"val": split})
    register_data_files([tmp_path / "odd.yaml"])
    images[0].write_bytes(images[0].read_bytes()[:300])
    images[1].unlink()
    page = data_view.write_data_page("odd_val", folder / "page.html", workers=1)
    assert len(page.faults) == 2 and len(page.images) == 2 and page.cards["Images"] == "4"
    assert str(images[0]) in page.faults[0] and "broken or truncated" in page.faults[0]
    html = (folder / "page.html").read_text()
    assert "<script>x" not in html and "&lt;/script&gt;&lt;script&gt;x" in html
    with open(folder / page.findings) as file:
        kinds = [row["kind"] for row in csv.DictReader(file)]
    assert kinds.count("fault") == 2


@pytest.mark.parametrize(
    ("config", "name", "opts"),
    [
        (OCR_CONFIG, "tiny_train", ["INPUT.MIN_SIZE_TRAIN", "(48, 64)"]),
        (SEMANTIC_CONFIG, "tiny_sem_train", [*TINY_SEMANTIC, "INPUT.BRIGHTNESS_SHIFT", "40"]),
    ],
)
def test_augmentation_is_the_mappers(registered, config, name, opts):
    cfg = load_config(str(config), [*opts, "DATASETS.TRAIN", f"('{name}',)", "DATASETS.TEST", "()"])
    complete_config(cfg, training=True)
    samples = list(augmented_pictures(cfg))
    assert len(samples) == 8
    record = DatasetCatalog.get(name)[3]
    file_name, pictures = samples[3]
    assert file_name == Path(record["file_name"]).name
    assert np.array_equal(pictures[0][2], np.asarray(Image.open(record["file_name"])))
    mapper = task_of(cfg).mapper(cfg, True)
    seen = set()
    with seeded_generators(max(cfg.SEED, 0), 3):
        for title, size, picture in pictures[1:]:
            image = mapper(record)["image"].numpy().transpose(1, 2, 0)
            if cfg.INPUT.FORMAT == "BGR":
                image = image[:, :, ::-1]
            assert size == f"{image.shape[1]} x {image.shape[0]}" and title.startswith("draw")
            assert np.array_equal(
                picture[: len(image)], image.round().clip(0, 255).astype(np.uint8)
            )
            assert len(picture) == 2 * len(image)
            seen.add(picture.tobytes())
    assert len(seen) > 1


@pytest.mark.slow
def test_the_program(tiny_data, clean_catalog, tmp_path, capsys):
    """The validation set is found by its name."""
    output = tmp_path / "out/page.html"
    arguments = ("--dataset", "tiny_train", "--output", output, "--workers", 1)
    opts = ("--config-file", OCR_CONFIG, "INPUT.MIN_SIZE_TRAIN", "(64,)")
    assert run_script("tools/view_data.py", *arguments, *opts) == 0
    assert f"The page is {output}" in capsys.readouterr().out
    html = output.read_text()
    assert "With tiny_val: 0" in html and html.count("<b>draw 4</b>") == 8
    assert run_script("tools/view_data.py", *arguments, "--against", "") == 0
    assert "With tiny_val" not in output.read_text()
    for name in ("nothing_train", "coco_2017_test-dev", "cityscapes_panoptic_test"):
        assert run_script("tools/view_data.py", "--dataset", name, "--output", output) == 1
    assert run_script("tools/view_data.py", *arguments, "SOLVER.MAX_ITER", "3") == 2
    assert "KEY VALUE without --config-file" in capsys.readouterr().err
