"""MATLAB files become label PNGs, on miniatures of the two releases."""

import sys
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog
from PIL import Image

from ocr_panoptic.data.published.register import register_published
from ocr_panoptic.formats.labels import read_label_image
from ocr_panoptic.formats.offsets import read_variable
from prepare_mat_labels import COCO_STUFF_10K, PASCAL_CONTEXT, main, prepare_mat_release
from support.faults import faults_of

RELEASES = {
    "pascal_context": (PASCAL_CONTEXT, {"train": "2008_000002", "val": "2008_000003"}),
    "coco_stuff_10k": (
        COCO_STUFF_10K,
        {"train": "COCO_train2014_000000000077", "test": "COCO_train2014_000000000194"},
    ),
}
NAMED = {"pascal_context": "pascal_context_59_{}_sem", "coco_stuff_10k": "coco_stuff_10k_{}_sem"}


@pytest.fixture
def scipy_io():
    return pytest.importorskip("scipy.io", reason="SciPy is only needed to read MATLAB files")


def raw_labels(release) -> np.ndarray:
    raw = np.array([sorted(release.space.label_map)])
    return np.concatenate([raw, raw[:, ::-1]])


@pytest.fixture(params=RELEASES)
def miniature(request, tmp_path, scipy_io):
    """
    Return a release, its splits and its folder, with an image for each split.

    The image has every raw label; the second split stores doubles, MATLAB's default.
    """
    release, splits = RELEASES[request.param]
    raw = raw_labels(release)
    for split, name in splits.items():
        write_mat(scipy_io, tmp_path, release, name, raw if split == "train" else raw.astype(float))
        (tmp_path / release.images).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", raw.shape[::-1]).save(tmp_path / release.images / f"{name}.jpg")
        path = tmp_path / release.splits[split]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    return release, splits, tmp_path


def write_mat(scipy_io, root: Path, release, name: str, labels, key: str | None = None) -> Path:
    path = root / release.mats / f"{name}.mat"
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy_io.savemat(path, {key or release.key: labels, "names": "other"})
    return path


def test_every_raw_label_is_kept(miniature, clean_catalog, request, monkeypatch, capsys):
    release, splits, root = miniature
    release_name = request.node.callspec.params["miniature"]
    monkeypatch.setenv("DETECTRON2_DATASETS", str(root))
    for workers in (1, 2):  # a second run changes nothing
        main([release_name, "--workers", str(workers)])
    printed, folders = capsys.readouterr().out, prepare_mat_release(release, root, workers=1)
    assert all(str(folder) in printed for folder in folders)
    assert folders == [root / release.labels / split for split in splits]
    for folder, name in zip(folders, splits.values()):
        assert np.array_equal(read_label_image(folder / f"{name}.png"), raw_labels(release))
    # The registered data sets find the PNGs there.
    register_published([], root)
    named = NAMED[release_name]
    for split, name in splits.items():
        (record,) = DatasetCatalog.get(named.format(split))
        assert Path(record["file_name"]).stem == Path(record["sem_seg_file_name"]).stem == name


def test_faults(miniature, scipy_io):
    release, splits, root = miniature
    train, other = splits.values()
    raw = raw_labels(release)
    path = write_mat(scipy_io, root, release, train, raw, key="other")
    (root / release.mats / f"{other}.mat").unlink()
    assert faults_of(prepare_mat_release, release, root, workers=1) == [
        f"{path}: expected the variable {release.key!r}, found names, other.",
        f"{root / release.mats / other}.mat: file not found.",
    ]
    path.write_bytes(b"not a matrix")
    write_mat(scipy_io, root, release, other, raw[:, :-1])
    faults = faults_of(prepare_mat_release, release, root, workers=1)
    assert f"{path}: broken, or not a MATLAB file" in faults[0]
    assert f"the labels have {raw.shape[1] - 1}x{raw.shape[0]} pixels" in faults[1]
    raw[0, 0] = 500
    write_mat(scipy_io, root, release, train, raw)
    write_mat(scipy_io, root, release, other, raw - 0.5)
    faults = faults_of(prepare_mat_release, release, root, workers=1)
    assert "500 (1 pixels)" in faults[0]
    assert "0..65535" in faults[1]


def test_missing_images_folders_and_lists(miniature):
    release, splits, root = miniature
    image = root / release.images / f"{splits['train']}.jpg"
    image.unlink()
    first, *_ = faults_of(prepare_mat_release, release, root, workers=1)
    assert first.startswith(f"{image}: the image was not found")
    (root / release.mats).rename(root / "elsewhere")
    with pytest.raises(FileNotFoundError, match=f"{root / release.mats}: folder not found. Unpack"):
        prepare_mat_release(release, root, workers=1)
    path = root / release.splits["train"]
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path}: list of images not found"):
        prepare_mat_release(release, root, workers=1)


def test_without_scipy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ModuleNotFoundError, match="pip install scipy"):
        read_variable(tmp_path / "a.mat", "S")
