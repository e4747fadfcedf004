"""The report of a tiny run that was trained and evaluated."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from ocr_panoptic.cli import call
from ocr_panoptic.evaluation.stored import read_table
from support.tiny_runs import OCR_CONFIG, PLAIN_CONFIG, SEMANTIC_CONFIG, TINY_SEMANTIC

pytestmark = pytest.mark.slow


def make_report(args, run: Path, *flags: str) -> None:
    weights = ["MODEL.WEIGHTS", str(run / "model_final.pth")]
    call("report", ["--config-file", args.config_file, *flags, *args.opts, *weights])


@pytest.mark.parametrize("config", [OCR_CONFIG, PLAIN_CONFIG])
def test_the_report_of_a_run(trained, tmp_path, config):
    args = trained(config=config)
    run = tmp_path / "run"
    make_report(args, run, "--num-images", "2", "--num-ranked", "2")
    page = (run / "index.html").read_text()

    metrics = json.loads((run / "inference/tiny_val/metrics.json").read_text())
    for task, metric in (("panoptic_seg", "PQ"), ("sem_seg", "mIoU"), ("sem_seg", "ECE")):
        assert f"<dd>{metrics[task][metric]:.1f}" in page
    assert page.count("over the iterations") == 3 and "Total loss" in page
    assert "Trained on tiny_train for 3 iterations, evaluated on the 4 images of tiny_val." in page

    names = re.findall(r"<h3>(val_\d+\.jpg)</h3>", page)
    assert names[:2] == ["val_00000.jpg", "val_00003.jpg"]  # evenly spread over the data set
    scores = read_table(run / "inference/tiny_val/panoptic_seg_per_image.csv")
    assert names[2:] == [Path(scores[i]["file_name"]).name for i in (0, 1)]
    assert [float(s["PQ"]) for s in scores] == sorted(float(s["PQ"]) for s in scores)
    assert f"PQ {float(scores[0]['PQ']):.1f}; masks" in page
    low, high = (metrics["panoptic_seg"][f"PQ_{end}"] for end in ("low", "high"))
    assert f"{low:.1f} to {high:.1f}" in page
    assert page.count("Panoptic prediction</b>") == 4
    is_ocr = config == OCR_CONFIG
    assert page.count("<b>Coarse semantics</b>") == (4 if is_ocr else 0)
    assert ("Soft object region of sky" in page) == is_ocr
    assert ("Panoptic-FPN + OCR" in page) == is_ocr
    assert f"<dd>{metrics['run']['torch']}</dd>" in page


@pytest.mark.parametrize("scheme", ["OCR", "GT-OCR"])
def test_the_report_of_a_semantic_run(trained, tmp_path, scheme):
    """test_inspection.py covers the other schemes."""
    opts = () if scheme == "OCR" else ("MODEL.CONTEXT.NAME", scheme)
    args = trained(*TINY_SEMANTIC, *opts, config=SEMANTIC_CONFIG)
    run = tmp_path / "run"
    make_report(args, run, "--num-images", "2", "--num-ranked", "2")
    page = (run / "index.html").read_text()

    content = json.loads((run / "inference/tiny_sem_val/metrics.json").read_text())
    metrics, record = content["sem_seg"], content["run"]
    for metric in ("mIoU", "mIoU_truth_or_predicted", "fwIoU"):
        assert f"<dd>{metrics[metric]:.1f}" in page
    assert f">{metrics['IoU-sky']:.1f}</td>" in page
    assert f"<h1>Semantic segmentation + {scheme}</h1>" in page
    assert page.count("<b>Truth</b>") == page.count("<b>Coarse semantics</b>") == 4
    assert page.count("<b>Refined semantics</b>") == 4
    for part in ("Soft object region of sky", '<div class="relation"'):
        assert page.count(part) == (2 if scheme == "OCR" else 0)
    assert "Panoptic" not in page
    assert "data:image/png;base64," in page  # the confusion matrix
    assert f"<dd>{record['weights_sha256']}</dd>" in page and record["config_sha256"] in page


def test_metrics_and_pictures_are_of_the_same_model(trained, tmp_path):
    args, run = trained(*TINY_SEMANTIC, config=SEMANTIC_CONFIG), tmp_path / "run"
    scores = run / "inference/tiny_sem_val/sem_seg_per_image.csv"
    scores.write_text(scores.read_text().replace("val_00001", "gone"))
    make_report(args, run, "--num-images", "1")
    page = (run / "index.html").read_text()
    assert len(re.findall(r"<h3>val_\d+.jpg</h3>", page)) == 4 and "gone" not in page
    (run / "index.html").unlink()
    record = json.loads((run / "inference/tiny_sem_val/metrics.json").read_text())["run"]
    file = run / "model_final.pth"
    saved = torch.load(file, weights_only=True)
    saved["model"]["sem_seg_head.refined_predictor.bias"][0] += 1e-3
    torch.save(saved, file)
    with pytest.raises(ValueError, match=f"used .*{record['weights_sha256'][:12]}.*MODEL.WEI"):
        make_report(args, run)
    assert not (run / "index.html").exists()


def test_refused_requests(trained, make_args, tmp_path):
    args = trained(*TINY_SEMANTIC, config=SEMANTIC_CONFIG)
    shutil.rmtree(tmp_path / "run/inference")
    with pytest.raises(FileNotFoundError, match="ocr-panoptic evaluate --config-file CONFIG"):
        make_report(args, tmp_path / "run")
    with pytest.raises(ValueError, match="META_ARCHITECTURE is SemanticSegmentor"):
        make_report(make_args("MODEL.META_ARCHITECTURE", "SemanticSegmentor"), tmp_path / "run")
