"""tools/region_quality.py on tiny runs, against their evaluation."""

import importlib.util
import json

import pytest

from train_net import main as train

from .conftest import OCR_CONFIG, ROOT, SEMANTIC_CONFIG, TINY_SEMANTIC


@pytest.fixture
def region_quality():
    """tools/region_quality.py's main; tools/ is no package."""
    path = ROOT / "tools/region_quality.py"
    spec = importlib.util.spec_from_file_location("region_quality", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.mark.parametrize(
    "config, opts, data",
    [
        (OCR_CONFIG, [], "tiny_val"),
        (SEMANTIC_CONFIG, [*TINY_SEMANTIC, "MODEL.CONTEXT.NAME", "ACF-OCR"], "tiny_sem_val"),
    ],
    ids=["panoptic", "semantic"],
)
def test_a_run(tiny_data, make_args, tmp_path, region_quality, capsys, config, opts, data):
    args = make_args(*opts, config=config)
    train(args)
    run = tmp_path / "run"
    weights = ["MODEL.WEIGHTS", str(run / "model_final.pth")]
    region_quality(["--config-file", args.config_file, *args.opts, *weights])
    printed = capsys.readouterr().out
    rows = json.loads((run / "inference" / data / "region_quality.json").read_text())
    metrics = json.loads((run / "inference" / data / "metrics.json").read_text())["sem_seg"]
    assert rows["mean"]["IoU refined"] == pytest.approx(metrics["mIoU"])
    assert set(rows["grass"].values()) == {None}  # no image shows it
    for name, row in rows.items():
        assert f"| {name} " in printed
        if name != "mean":
            assert row["IoU refined"] == pytest.approx(metrics[f"IoU-{name}"])
        if name != "grass":
            assert 0 < row["own weight"] < 100 and 0 < row["own relation"] < 100


def test_a_scheme_without_regions(tiny_data, make_args, tmp_path, region_quality):
    args = make_args(*TINY_SEMANTIC, "MODEL.CONTEXT.NAME", "PPM", config=SEMANTIC_CONFIG)
    train(args)
    weights = ["MODEL.WEIGHTS", str(tmp_path / "run/model_final.pth")]
    with pytest.raises(ValueError, match="MODEL.CONTEXT.NAME PPM relates no pixels"):
        region_quality(["--config-file", args.config_file, *args.opts, *weights])
    assert not (tmp_path / "run/inference/tiny_sem_val/region_quality.json").exists()
