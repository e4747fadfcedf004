"""train_net.py with the semantic-only architecture: another config is the only difference."""

import json

import numpy as np
import pytest
from PIL import Image

from support.tiny_runs import SEMANTIC_CONFIG, TINY_SEMANTIC
from train_net import main


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["OCR", "none"])
def test_trains_and_evaluates(trained, tmp_path, scheme):
    trained(*TINY_SEMANTIC, "MODEL.CONTEXT.NAME", scheme, config=SEMANTIC_CONFIG)
    folder = tmp_path / "run"
    lines = (folder / "metrics.json").read_text().splitlines()
    log = {name for line in lines for name in json.loads(line)}
    assert {"loss_sem_seg", "loss_sem_seg_coarse"} <= log
    metrics = json.loads((folder / "inference/tiny_sem_val/metrics.json").read_text())
    assert 0 <= metrics["sem_seg"]["mIoU"] <= 100
    assert "IoU-sky" in metrics["sem_seg"]
    assert (folder / "inference/tiny_sem_val/per_class.csv").exists()


@pytest.mark.slow
def test_a_published_data_set(tmp_path, monkeypatch, semantic_args):
    """Cityscapes' own files: raw label ids in, its classes out."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    rng = np.random.default_rng(0)
    for split, city in (("train", "aachen"), ("train", "bochum"), ("val", "munster")):
        for kind, name in (("leftImg8bit", "leftImg8bit"), ("gtFine", "gtFine_labelIds")):
            folder = tmp_path / "cityscapes" / kind / split / city
            folder.mkdir(parents=True)
            size = (64, 128, 3) if kind == "leftImg8bit" else (64, 128)
            values = rng.integers(0, 34, size, np.uint8)  # all ids, ignored ones too
            Image.fromarray(values).save(folder / f"{city}_000000_000019_{name}.png")
    data = ["DATASETS.TRAIN", "('cityscapes_fine_train_sem',)"]
    data += ["DATASETS.TEST", "('cityscapes_fine_val_sem',)", "TEST.SAVE_PREDICTIONS", True]
    main(semantic_args(*data))
    results = tmp_path / "run/inference/cityscapes_fine_val_sem"
    metrics = json.loads((results / "metrics.json").read_text())["sem_seg"]
    assert len([name for name in metrics if name.startswith("IoU-")]) >= 19
    assert {"IoU-road", "IoU-traffic light", "IoU-bicycle"} <= set(metrics)
    (prediction,) = (results / "sem_seg_predictions").glob("munster_000000_000019_*.png")
    ids = {7, 8, 11, 12, 13, 17, *range(19, 29), 31, 32, 33}
    assert set(np.unique(np.asarray(Image.open(prediction)))) <= ids
