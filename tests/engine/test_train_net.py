"""train_net.py on tiny data: training, evaluation, several processes, equal runs for a seed."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from panopticapi.evaluation import pq_compute
from torch import nn

import ocr_panoptic
from ocr_panoptic.cli.train import argument_parser
from ocr_panoptic.config.files import load_config
from ocr_panoptic.engine.setup import prepare_process
from ocr_panoptic.engine.trainer import log_period
from ocr_panoptic.predict.run_info import run_info
from support.interrupted_runs import assert_same, run, saved
from support.tiny_runs import CONFIGS, OCR_CONFIG, SEMANTIC_CONFIG, TINY_SEMANTIC
from train_net import Trainer, main, setup

pytestmark = pytest.mark.slow


def training_log(folder: Path) -> dict:
    lines = (folder / "metrics.json").read_text().splitlines()
    return {name: value for line in lines for name, value in json.loads(line).items()}


def evaluation(folder: Path) -> dict:
    (file,) = (folder / "inference").glob("*/metrics.json")
    return json.loads(file.read_text())


def same(a: dict, b: dict) -> None:
    """Check that metrics are equal up to rounding, with null in the same places."""
    assert a.keys() == b.keys()
    for task in a.keys() - {"run"}:
        assert a[task].keys() == b[task].keys()
        for name, value in a[task].items():
            assert value == (None if b[task][name] is None else pytest.approx(b[task][name])), name


def test_a_run_and_its_files(trained, make_args, tmp_path):
    trained()
    run = tmp_path / "run"
    log = training_log(run)
    assert {"loss_sem_seg", "loss_sem_seg_coarse", "loss_mask", "total_loss"} <= set(log)
    assert any(p.name.startswith("events.out.tfevents") for p in run.iterdir())
    rows = [json.loads(line) for line in (run / "metrics.json").read_text().splitlines()]
    assert [row["iteration"] for row in rows if "total_loss" in row] == [0, 1, 2]
    assert re.findall(r"iter: (\d+) ", (run / "log.txt").read_text()) == ["0", "1", "2"]
    metrics = evaluation(run)
    assert {"PQ", "SQ", "RQ", "PQ_th", "PQ_st", "SQ_th", "RQ_st"} <= set(metrics["panoptic_seg"])
    assert "mIoU" in metrics["sem_seg"] and "AP" in metrics["bbox"] and "AP" in metrics["segm"]
    assert metrics["run"]["seed"] == 0 and len(metrics["run"]["config_sha256"]) == 64
    assert metrics["run"]["iteration"] == 3
    assert metrics["run"]["weights"].endswith("/run/model_final.pth")
    assert metrics["run"]["ocr_panoptic"] == ocr_panoptic.__version__
    with open(run / "inference/tiny_val/per_class.csv") as f:
        rows = {row["class"]: row for row in csv.DictReader(f)}
    assert float(rows["sky"]["PQ"]) == metrics["panoptic_seg"]["PQ-sky"]
    assert not (run / "inference/tiny_val/panoptic_predictions.json").exists()

    # The saved weights give the same metrics again, whatever settings only training needs.
    weights, other = str(run / "model_final.pth"), str(run / "again")
    training = ["DATASETS.TRAIN", "('moved_away',)", "SOLVER.AMP.ENABLED", True]
    training += ["SOLVER.ACCUMULATION_STEPS", 3]
    opts = ["MODEL.WEIGHTS", weights, "OUTPUT_DIR", other, *training]
    main(make_args(*opts, flags=("--eval-only",)))
    same(evaluation(Path(other)), metrics)
    again = evaluation(Path(other))["run"]
    assert again["weights_sha256"] == metrics["run"]["weights_sha256"]
    evaluated = load_config(str(run / "again/inference/tiny_val/config.yaml"), [])
    assert weights == evaluated.MODEL.WEIGHTS and not (run / "again/config.yaml").exists()


def test_facts_about_a_run_in_its_results():
    """The hash covers the settings, but not the folder; the device is named."""
    model = nn.Linear(2, 1)

    def info(*opts: object) -> dict:
        opts = ["MODEL.DEVICE", "cpu", *map(str, opts)]
        return run_info(load_config(str(OCR_CONFIG), opts), model)

    here, there = info("OUTPUT_DIR", "here"), info("OUTPUT_DIR", "there")
    assert here["config_sha256"] == there["config_sha256"] and here["output_dir"] == "here"
    assert here["config_sha256"] != info("SOLVER.BASE_LR", 0.5)["config_sha256"]
    assert here["weights"] == "" and "initial_weights" not in here
    assert here["weights_sha256"] == there["weights_sha256"]
    with torch.no_grad():
        model.bias += 1
    assert here["weights_sha256"] != info()["weights_sha256"]
    assert here["device"].endswith(", 1 thread")


def test_period_of_the_progress():
    assert [log_period(n) for n in (3, 39, 180, 400, 90000)] == [1, 1, 9, 20, 20]


def test_predictions_are_saved_on_request(trained, tiny_data, make_args, tmp_path):
    trained()
    weights = ("MODEL.WEIGHTS", tmp_path / "run/model_final.pth")
    main(make_args("TEST.SAVE_PREDICTIONS", True, *weights, flags=("--eval-only",)))
    folder = tmp_path / "run/inference/tiny_val"
    raw = tiny_data / "tiny/raw/val"
    result = pq_compute(
        str(raw / "panoptic.json"),
        str(folder / "panoptic_predictions.json"),
        str(raw / "panoptic"),
        str(folder / "panoptic_predictions"),
    )
    ours = evaluation(tmp_path / "run")["panoptic_seg"]["PQ"]
    assert ours == pytest.approx(100 * result["All"]["pq"], abs=1e-9)


@pytest.mark.parametrize("config", [OCR_CONFIG, SEMANTIC_CONFIG], ids=["panoptic", "semantic"])
def test_two_cpu_processes(tiny_data, make_args, tmp_path, config):
    opts = TINY_SEMANTIC if config == SEMANTIC_CONFIG else []
    args, folder = make_args(*opts, config=config), tmp_path / "run"
    assert run(["--config-file", args.config_file, *args.opts], folder, processes=2) == 0
    weights = ("MODEL.WEIGHTS", folder / "model_final.pth", "OUTPUT_DIR", tmp_path / "one")
    main(make_args(*opts, *weights, config=config, flags=("--eval-only",)))
    two, one = evaluation(folder), evaluation(tmp_path / "one")
    assert (two["run"]["processes"], one["run"]["processes"]) == (2, 1)
    same(two, one)


@pytest.mark.gpu
@pytest.mark.parametrize("before, after", [(True, True), (False, True), (True, False)])
def test_mixed_precision_on_a_gpu(tiny_data, make_args, tmp_path, before, after):
    """The loss scale is resumed, and a resumed run may change its precision."""
    main(make_args("MODEL.DEVICE", "cuda", "SOLVER.AMP.ENABLED", before))
    weights = tmp_path / "run/model_final.pth"
    scaler = torch.load(weights, weights_only=True)["trainer"]["_trainer"].get("grad_scaler")
    assert bool(scaler) == before
    args = ["MODEL.DEVICE", "cuda", "SOLVER.AMP.ENABLED", after, "SOLVER.MAX_ITER", 5]
    main(make_args(*args, flags=("--resume",)))
    log = training_log(tmp_path / "run")
    assert all(np.isfinite(value) for name, value in log.items() if "loss" in name)
    resumed = torch.load(weights, weights_only=True)["trainer"]["_trainer"].get("grad_scaler")
    assert bool(resumed) == after
    if before and after:
        assert resumed["_growth_tracker"] > scaler["_growth_tracker"]
    assert evaluation(tmp_path / "run")["panoptic_seg"]["PQ"] is not None


@pytest.mark.parametrize("data", ["tiny", "tiny_sem"])
def test_a_run_of_segfix(data, tiny_data, tmp_path):
    opts = [
        *("DATASETS.TRAIN", f"('{data}_train',)", "DATASETS.TEST", f"('{data}_val',)"),
        *("SOLVER.MAX_ITER", "3", "SOLVER.IMS_PER_BATCH", "2", "INPUT.CROP.SIZE", "[48, 48]"),
        *("DATALOADER.NUM_WORKERS", "0", "MODEL.DEVICE", "cpu", "MODEL.SEGFIX.CHANNELS", "16"),
        *("MODEL.TIMM.NAME", "test_resnet"),
        *("TEST.BEST_CHECKPOINT", "offsets/F1", "OUTPUT_DIR", str(tmp_path)),
    ]
    config = str(CONFIGS / "quick_schedules/segfix_R_18_scenes.yaml")
    main(argument_parser().parse_args(["--config-file", config, *opts]))
    assert {"loss_boundary", "loss_direction"} <= training_log(tmp_path).keys()
    found = evaluation(tmp_path)["offsets"]
    assert found.keys() == {"F1", "precision", "recall", "direction_ACC"}
    assert all(0 <= value <= 100 for value in found.values())
    assert (tmp_path / "model_best.pth").exists()


def test_the_record_of_a_conversion_stays_with_the_weights(trained, make_args, tmp_path):
    """Training from converted weights keeps it, and an evaluation reads it."""
    trained(*TINY_SEMANTIC, config=SEMANTIC_CONFIG)
    weights = saved(tmp_path / "run")["model"]
    record = {"source": "mmseg", "file": "a.pth", "settings": {"INPUT.FORMAT": "RGB"}}
    torch.save({"model": weights, "conversion": record}, tmp_path / "converted.pth")
    opts = (*TINY_SEMANTIC, "MODEL.WEIGHTS", tmp_path / "converted.pth", "INPUT.FORMAT", "RGB")
    more = ("SOLVER.BASE_LR", 0.0, "DATASETS.TEST", "()", "OUTPUT_DIR", tmp_path / "on")
    main(make_args(*opts, *more, config=SEMANTIC_CONFIG))
    found, name = saved(tmp_path / "on"), "sem_seg_head.context.g.weight"
    assert found["conversion"] == record
    assert torch.equal(found["model"][name], weights[name])  # a rate of 0 leaves the first weights
    with pytest.raises(ValueError, match="INPUT.FORMAT is BGR"):
        main(make_args(*opts[:-1], "BGR", config=SEMANTIC_CONFIG, flags=("--eval-only",)))


def test_equal_metrics_and_weights(tiny_data, semantic_args, tmp_path):
    """Runs with random crops, flips, dropout and two workers are equal to the last bit."""
    runs = []
    for name, seed in (("a", 3), ("b", 3), ("another seed", 4)):
        opts = ["OUTPUT_DIR", tmp_path / name, "SEED", seed, "DATALOADER.NUM_WORKERS", 2]
        results = main(semantic_args(*opts, flags=("--deterministic",)))
        runs.append((str(results), saved(tmp_path / name)["model"]))
    assert runs[0][0] == runs[1][0] and "mIoU" in runs[0][0]
    assert_same(runs[0][1], runs[1][1])
    assert any(not torch.equal(value, runs[2][1][key]) for key, value in runs[0][1].items())
    assert torch.are_deterministic_algorithms_enabled()


def test_the_start_of_a_run(tiny_data, make_args, tmp_path, capsys):
    """Loading only backbone weights gives the longest table."""
    cfg, _ = setup(make_args("SOLVER.MAX_ITER", 12))
    prepare_process(cfg, training=True, deterministic=False)
    trainer = Trainer(cfg)
    weights = trainer.checkpointer.model.state_dict()
    backbone = {name: w for name, w in weights.items() if name.startswith("backbone.")}
    torch.save({"model": backbone}, tmp_path / "backbone.pth")
    cfg.defrost()
    cfg.MODEL.WEIGHTS = str(tmp_path / "backbone.pth")
    trainer.resume_or_load(False)
    printed = "".join(capsys.readouterr())
    parameters = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad) / 1e6
    expected = [
        "tiny_train (8 images)",
        "4 thing and 5 stuff classes",
        "PanopticSegmentor",
        "with OCR",
    ]
    expected += ["Training starts at iteration 0 of 12", "12 iterations of 2 images"]
    expected += [f"{parameters:.1f} M trainable parameters", "3.0 epochs", "backbone.pth fills "]
    expected += ["sem_seg_head", "cpu (", str(tmp_path / "run")]
    assert [text for text in expected if text not in printed] == []
    log = (tmp_path / "run/log.txt").read_text()
    assert "PyTorch" in log and "SOLVER:\n" in log and "Training starts at" in log
    assert "SOLVER:\n" not in printed
