"""tools/region_quality.py on tiny runs, against their evaluation and the model itself."""

import json

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog
from detectron2.data.detection_utils import read_image

from ocr_panoptic.analysis.inspection import _cell_edges
from ocr_panoptic.engine import build_trained_model, complete_config, load_config
from ocr_panoptic.formats.labels import read_true_labels
from support.scripts import load_script
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG, TINY_SEMANTIC


@pytest.fixture
def region_quality():
    return load_script("tools/region_quality.py").main


def own_relation_of_acf(args, weights: list[str]) -> list[float]:
    """ACF-OCR's relation is a softmax of the coarse logits. Images of 64 pixels, stride 8."""
    cfg = load_config(args.config_file, [*args.opts, *weights])
    complete_config(cfg)
    network = build_trained_model(cfg).network
    sums = np.zeros((2, 9))
    for record in DatasetCatalog.get(cfg.DATASETS.TEST[0]):
        image = read_image(record["file_name"], cfg.INPUT.FORMAT).transpose(2, 0, 1).copy()
        with torch.no_grad():
            coarse, _ = network.layers(
                [{"image": torch.from_numpy(image), "height": 64, "width": 64}]
            )
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
    ids=["panoptic", "semantic"],
)
def test_a_run(trained, tmp_path, region_quality, capsys, config, opts, data):
    args = trained(*opts, config=config)
    run = tmp_path / "run"
    weights = ["MODEL.WEIGHTS", str(run / "model_final.pth")]
    flip = ["TEST.FLIP", "True"] if config == SEMANTIC_CONFIG else []  # is not to matter
    region_quality(["--config-file", args.config_file, *args.opts, *weights, *flip])
    printed = capsys.readouterr().out
    content = json.loads((run / "inference" / data / "region_quality.json").read_text())
    assert content["run"]["weights"] == weights[1]
    rows = content["classes"]
    metrics = json.loads((run / "inference" / data / "metrics.json").read_text())["sem_seg"]
    assert rows["(mean)"]["IoU refined"] == pytest.approx(metrics["mIoU"])
    assert rows["(mean)"]["IoU coarse"] != rows["(mean)"]["IoU refined"]
    assert set(rows["grass"].values()) == {None}  # no image shows it
    for name, row in rows.items():
        assert f"| {name} " in printed
        if name not in ("grass", "(mean)"):
            assert row["IoU refined"] == pytest.approx(metrics[f"IoU-{name}"])
            assert row["own weight"] <= row["attainable"]
    if config == SEMANTIC_CONFIG:
        found = [r["own relation"] for n, r in rows.items() if n not in ("grass", "(mean)")]
        assert found == pytest.approx(own_relation_of_acf(args, weights), rel=1e-4)


@pytest.mark.parametrize("opts", [("CONTEXT.NAME", "PPM"), ("OCR.REGION_SUPERVISION", "False")])
def test_models_without_regions_of_classes(tiny_data, make_args, tmp_path, region_quality, opts):
    args = make_args(*TINY_SEMANTIC, f"MODEL.{opts[0]}", opts[1], config=SEMANTIC_CONFIG)
    with pytest.raises(ValueError, match=f"MODEL.{opts[0]} {opts[1]}.* has no predicted regions"):
        region_quality(["--config-file", args.config_file, *args.opts])


@pytest.mark.parametrize(
    "inside, features, padded, side, pixels, align_corners, expected",
    [
        (3, 3, 24, 24, 24, False, [0, 8, 16, 24]),
        (3, 3, 24, 20, 40, False, [0, 16, 32, 40]),  # the last cell is half in the padding
        (3, 3, 25, 25, 25, True, [0, 6.5, 18.5, 25]),  # at pixels 0, 12 and 24
        (1, 1, 8, 8, 8, True, [0, 8]),
        (2, 30, 240, 16, 16, True, [0, 239 / 58 + 0.5, 16]),  # up to the padding in any case
    ],
)
def test_cells(inside, features, padded, side, pixels, align_corners, expected):
    found = _cell_edges(inside, features, padded, side, pixels, align_corners)
    assert found.tolist() == pytest.approx(expected)
