"""The quality of soft object regions: by hand, pixel by pixel, and of tiny runs."""

import json

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog
from detectron2.data.detection_utils import read_image

from ocr_panoptic.cli import call
from ocr_panoptic.config.files import load_config
from ocr_panoptic.formats.labels import read_true_labels
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.trained_model import build_trained_model
from ocr_panoptic.workbench.looking.inspection import cell_edges
from ocr_panoptic.workbench.looking.region_quality import RegionQuality
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG, TINY_SEMANTIC


def test_by_hand():
    """4x4 pixels in 2x2 cells: a is the left half, b the third column; the fourth is ignored."""
    truth = np.tile(np.array([0, 0, 1, 255], np.uint8), (4, 1))
    refined = np.where(truth == 0, 0, 1)
    coarse = np.zeros_like(refined)
    regions = np.array([[[0.5, 0.2], [0.1, 0.2]], [[0.2, 0.3], [0.1, 0.4]], [[1, 0], [0, 0]]])
    relation = np.array([[[0.7, 0.2], [0.5, 0.4]], [[0.3, 0.8], [0.5, 0.5]], [[0, 0], [0, 0.1]]])
    quality = RegionQuality(["a", "b", "c"], ignore_label=255)
    cells = np.array([0.0, 2, 4]), np.array([0.0, 2, 4])
    quality.process(truth, coarse, refined, regions, relation, cells)
    rows = quality.results()
    # Half of the weight in the right cells is on ignored pixels, and does not count.
    names = ("IoU coarse", "IoU refined", "own weight", "uniform", "attainable", "own relation")
    values = (100 * 8 / 12, 100, 100 * 0.6 / (0.6 + 0.4 / 2), 100 * 8 / 12, 100, 60)
    assert rows["a"] == pytest.approx(dict(zip(names, values)))
    values = (0, 100, 100 * (0.7 / 2) / (0.7 / 2 + 0.3), 100 * 4 / 12, 100, 65)
    assert rows["b"] == pytest.approx(dict(zip(names, values)))
    assert np.isnan(list(rows["c"].values())).all()
    assert rows["(mean)"]["own relation"] == pytest.approx((60 + 65) / 2)

    # By its pixels, this image counts twice for a. b fills a quarter of a cell.
    large = np.zeros((4, 4), np.uint8)
    large[3, 3] = 1
    half = np.full((3, 2, 2), 0.25)
    quality.process(large, large.astype(int), large.astype(int), half, half, cells)
    rows = quality.results()
    assert rows["a"]["own weight"] == pytest.approx((8 * 75 + 15 * 100 * 15 / 16) / 23)
    assert rows["a"]["own relation"] == pytest.approx((8 * 60 + 15 * 25) / 23)
    assert rows["b"]["attainable"] == pytest.approx((4 * 100 + 1 * 25) / 5)


def test_cells_that_are_not_whole_pixels():
    """The reference is so fine that cells and pixels are whole numbers of its points."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, (5, 7)).astype(np.uint8)
    truth[1, 2] = 255
    regions, relation = rng.random((2, 3, 2, 3))
    quality = RegionQuality(["a", "b", "c"], 255)
    labels = np.where(truth == 255, 0, truth)
    cells = np.array([0, 3.5, 5]), np.array([0.0, 3, 6, 7])
    quality.process(truth, labels, labels, regions, relation, cells)
    rows = quality.results()

    fine = truth.repeat(2, 0).repeat(2, 1)
    cell = np.zeros((10, 14), int)
    cell[:7] = np.repeat([0, 1, 2], [6, 6, 2])
    cell[7:] = np.repeat([3, 4, 5], [6, 6, 2])
    weight = np.array([1 / np.sum(cell == i) for i in range(6)])
    for label, name in enumerate("abc"):
        a = regions[label].ravel()[cell] * weight[cell]
        w = relation[label].ravel()[cell]
        own, known = fine == label, fine != 255
        shares = [np.sum(own & (cell == i)) / np.sum(known & (cell == i)) for i in range(6)]
        expected = {
            "IoU coarse": 100,
            "IoU refined": 100,
            "own weight": 100 * a[own].sum() / a[known].sum(),
            "uniform": 100 * own.sum() / known.sum(),
            "attainable": 100 * max(shares),
            "own relation": 100 * w[own].mean(),
        }
        assert rows[name] == pytest.approx(expected)


def own_relation_of_acf(args, weights: list[str]) -> list[float]:
    """Compute the own relation of ACF-OCR, a softmax of the coarse logits, at stride 8."""
    cfg = load_config(args.config_file, [*args.opts, *weights])
    complete_config(cfg)
    network = build_trained_model(cfg).network
    sums = np.zeros((2, 9))
    for record in DatasetCatalog.get(cfg.DATASETS.TEST[0]):
        image = read_image(record["file_name"], cfg.INPUT.FORMAT).transpose(2, 0, 1).copy()
        inputs = {"image": torch.from_numpy(image), "height": 64, "width": 64}
        with torch.no_grad():
            coarse, _ = network.layers([inputs])
        truth = read_true_labels(record)
        relation = coarse[0].softmax(0).numpy().repeat(8, 1).repeat(8, 2)
        for label in range(len(relation)):
            sums[:, label] += relation[label][truth == label].sum(), np.sum(truth == label)
    return [100 * a / n for a, n in sums.T if n]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config, opts, data",
    [
        (OCR_CONFIG, [], "tiny_val"),
        (SEMANTIC_CONFIG, [*TINY_SEMANTIC, "MODEL.CONTEXT.NAME", "ACF-OCR"], "tiny_sem_val"),
    ],
)
def test_a_run(trained, tmp_path, capsys, config, opts, data):
    args, run = trained(*opts, config=config), tmp_path / "run"
    weights = ["MODEL.WEIGHTS", str(run / "model_final.pth")]
    flip = ["TEST.FLIP", "True"] if config == SEMANTIC_CONFIG else []  # it must not matter
    command, folder = ["--config-file", args.config_file, *args.opts, *weights], f"inference/{data}"
    half = ["TEST.PRECISION", "bfloat16", "OUTPUT_DIR", str(tmp_path / "half")]
    call("regions", [*command, *half])
    content = json.loads((tmp_path / "half" / folder / "region_quality.json").read_text())
    assert content["classes"]["(mean)"]["own relation"] > 0
    capsys.readouterr()
    call("regions", [*command, *flip])
    printed = capsys.readouterr().out
    content = json.loads((run / folder / "region_quality.json").read_text())
    assert content["run"]["weights"] == weights[1]
    rows, absent = content["classes"], content["classes"].pop("grass")
    metrics = json.loads((run / folder / "metrics.json").read_text())["sem_seg"]
    mean = rows.pop("(mean)")
    assert mean["IoU refined"] == pytest.approx(metrics["mIoU"])
    assert mean["IoU coarse"] != mean["IoU refined"]
    assert set(absent.values()) == {None} and "| grass " in printed and "| (mean) " in printed
    for name, row in rows.items():
        assert f"| {name} " in printed
        assert row["IoU refined"] == pytest.approx(metrics[f"IoU-{name}"])
        assert row["own weight"] <= row["attainable"]
    if config == SEMANTIC_CONFIG:
        found = [row["own relation"] for row in rows.values()]
        assert found == pytest.approx(own_relation_of_acf(args, weights), rel=1e-4)


@pytest.mark.parametrize("opts", [("CONTEXT.NAME", "PPM"), ("OCR.REGION_SUPERVISION", "False")])
def test_models_without_regions_of_classes(tiny_data, make_args, tmp_path, opts):
    args = make_args(*TINY_SEMANTIC, f"MODEL.{opts[0]}", opts[1], config=SEMANTIC_CONFIG)
    with pytest.raises(
        ValueError, match=f"no object regions to measure: MODEL.{opts[0]} is {opts[1]};"
    ):
        call("regions", ["--config-file", args.config_file, *args.opts])


@pytest.mark.parametrize(
    "inside, features, padded, side, pixels, align_corners, expected",
    [
        (3, 3, 24, 24, 24, False, [0, 8, 16, 24]),
        (3, 3, 24, 20, 40, False, [0, 16, 32, 40]),  # the last cell is half in the padding
        (3, 3, 25, 25, 25, True, [0, 6.5, 18.5, 25]),  # centres at pixels 0, 12 and 24
        (1, 1, 8, 8, 8, True, [0, 8]),
        (2, 30, 240, 16, 16, True, [0, 239 / 58 + 0.5, 16]),  # the padding is the last edge
    ],
)
def test_cells(inside, features, padded, side, pixels, align_corners, expected):
    found = cell_edges(inside, features, padded, side, pixels, align_corners)
    assert found.tolist() == pytest.approx(expected)
