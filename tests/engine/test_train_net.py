"""train_net.py on a tiny data set: training, evaluation, resuming, several processes."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import ocr_panoptic
from ocr_panoptic.data.data_file import PanopticSplit, write_data_file
from ocr_panoptic.engine import Trainer, complete_config, load_config
from ocr_panoptic.engine.run_info import run_info
from ocr_panoptic.engine.training import log_period
from support.interrupted_runs import run
from support.scripts import run_script
from support.tiny_runs import OCR_CONFIG, PLAIN_CONFIG, ROOT, SEMANTIC_CONFIG, TINY_SEMANTIC
from train_net import main


def training_log(folder: Path) -> dict:
    """All scalars that a run has written to its metrics.json."""
    lines = (folder / "metrics.json").read_text().splitlines()
    return {name: value for line in lines for name, value in json.loads(line).items()}


def evaluation(folder: Path) -> dict:
    (file,) = (folder / "inference").glob("*/metrics.json")
    return json.loads(file.read_text())


def same(a: dict, b: dict) -> None:
    """Equal metrics, up to float noise; null where null."""
    assert a.keys() == b.keys()
    for task in a.keys() - {"run"}:
        assert a[task].keys() == b[task].keys()
        for name, value in a[task].items():
            assert value == (None if b[task][name] is None else pytest.approx(b[task][name])), name


@pytest.mark.slow
def test_a_run_and_what_it_leaves(trained, make_args, tmp_path):
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
    assert {"mIoU", "fwIoU", "pACC"} <= set(metrics["sem_seg"])
    assert "AP" in metrics["bbox"] and "AP" in metrics["segm"]
    assert metrics["run"]["seed"] == 0 and len(metrics["run"]["config_sha256"]) == 64
    assert metrics["run"]["iteration"] == 3
    assert metrics["run"]["weights"].endswith("/run/model_final.pth")
    assert metrics["run"]["ocr_panoptic"] == ocr_panoptic.__version__
    with open(run / "inference/tiny_val/per_class.csv") as f:
        rows = {row["class"]: row for row in csv.DictReader(f)}
    assert float(rows["sky"]["PQ"]) == metrics["panoptic_seg"]["PQ-sky"]
    assert not (run / "inference/tiny_val/panoptic_predictions.json").exists()

    # The saved weights give the same metrics again, and only strangers to them do not load.
    weights = str(run / "model_final.pth")
    other = str(run / "again")
    # What only training needs does not matter.
    training = ["DATASETS.TRAIN", "('moved_away',)", "SOLVER.AMP.ENABLED", True]
    training += ["SOLVER.ACCUMULATION_STEPS", 3]
    opts = ["MODEL.WEIGHTS", weights, "OUTPUT_DIR", other, *training]
    main(make_args(*opts, flags=("--eval-only",)))
    same(evaluation(Path(other)), metrics)
    again = evaluation(Path(other))["run"]
    assert again["weights_sha256"] == metrics["run"]["weights_sha256"]
    evaluated = load_config(str(run / "again/inference/tiny_val/config.yaml"), [])
    assert weights == evaluated.MODEL.WEIGHTS and not (run / "again/config.yaml").exists()
    other = ("MODEL.WEIGHTS", weights, "MODEL.OCR.CHANNELS", 64)
    with pytest.raises(ValueError, match="MODEL.OCR.CHANNELS is 64, and was 32"):
        main(make_args(*other, flags=("--eval-only",)))


def test_what_a_result_says_about_its_run():
    """The hash is that of the settings, wherever the run is written; the device has a name."""

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


@pytest.mark.parametrize("max_iter, period", [(3, 1), (39, 1), (180, 9), (400, 20), (90000, 20)])
def test_period_of_the_progress(max_iter, period):
    assert log_period(max_iter) == period


@pytest.mark.slow
def test_plain_panoptic_fpn_is_one_config_away(trained, tmp_path):
    trained(config=PLAIN_CONFIG)
    log = training_log(tmp_path / "run")
    assert "loss_sem_seg" in log and "loss_sem_seg_coarse" not in log
    assert evaluation(tmp_path / "run")["panoptic_seg"]["PQ"] is not None


@pytest.mark.slow
def test_predictions_are_saved_on_request(tiny_data, make_args, tmp_path):
    from panopticapi.evaluation import pq_compute

    main(make_args("TEST.SAVE_PREDICTIONS", True))
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


def torchrun(words: list[str], folder: Path, *, processes: int) -> int:
    """Forks lack the threads that Detectron2's evaluation in C++ waits for."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *launcher, str(ROOT / "train_net.py"), *words]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([*command, "OUTPUT_DIR", str(folder)], env=env).returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    "start, opts, config", [(torchrun, [], OCR_CONFIG), (run, TINY_SEMANTIC, SEMANTIC_CONFIG)]
)
def test_two_cpu_processes(tiny_data, make_args, tmp_path, start, opts, config):
    """Two processes of torchrun train together, and evaluate as one does."""
    args = make_args(*opts, config=config)
    folder = tmp_path / "run"
    assert start(["--config-file", args.config_file, *args.opts], folder, processes=2) == 0
    weights = ("MODEL.WEIGHTS", folder / "model_final.pth", "OUTPUT_DIR", tmp_path / "one")
    main(make_args(*opts, *weights, config=config, flags=("--eval-only",)))
    two, one = evaluation(folder), evaluation(tmp_path / "one")
    assert (two["run"]["processes"], one["run"]["processes"]) == (2, 1)
    same(two, one)


@pytest.mark.slow
@pytest.mark.parametrize("config", [OCR_CONFIG, SEMANTIC_CONFIG], ids=lambda path: path.stem)
def test_mixed_precision_on_a_cpu(tiny_data, make_args, tmp_path, config):
    """bfloat16 changes the semantic losses, but little, and the saved weights are float32."""
    args, logs = TINY_SEMANTIC if config == SEMANTIC_CONFIG else [], {}
    for amp in (False, True):
        output = tmp_path / f"amp_{amp}"
        opts = [*args, "SOLVER.AMP.ENABLED", amp, "OUTPUT_DIR", output, "SOLVER.MAX_ITER", 1]
        opts += ["DATASETS.TEST", "()"]
        main(make_args(*opts, config=config))
        logs[amp] = {k: v for k, v in training_log(output).items() if "loss" in k}
    # Boxes are drawn by what a few bits decide, and their losses with them.
    semantic = [name for name in logs[True] if "sem_seg" in name]
    assert len(semantic) == 2 and np.isfinite(list(logs[True].values())).all()
    for name in semantic:
        assert logs[True][name] == pytest.approx(logs[False][name], rel=0.05)
        assert logs[True][name] != logs[False][name]
    weights = torch.load(tmp_path / "amp_True/model_final.pth", weights_only=True)["model"]
    assert {w.dtype for w in weights.values() if w.is_floating_point()} == {torch.float32}


@pytest.mark.gpu
@pytest.mark.parametrize("before, after", [(True, True), (False, True), (True, False)])
def test_mixed_precision_on_a_gpu(tiny_data, make_args, tmp_path, before, after):
    """Trains and evaluates; the loss scale is resumed, and a run may change its mind."""
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


def test_a_users_mistake_ends_without_a_traceback(tiny_data, make_args, capfd):
    args = make_args("DATASETS.TRAIN", "('tiny_trian',)")
    assert run_script("train_net.py", "--config-file", args.config_file, *args.opts) == 1
    printed = "".join(capfd.readouterr())
    assert "ERROR: DATASETS.TRAIN: Data set 'tiny_trian' is not registered" in printed
    assert "Traceback" not in printed


def spoiled(tiny_root: Path, target: Path, keep: str) -> None:
    """The tiny data set with its truth reduced: only stuff, or only void in all but one image."""
    splits = {}
    for split in ("train", "val"):
        raw = tiny_root / "tiny/raw" / split
        content = json.loads((raw / "panoptic.json").read_text())
        things = {c["id"] for c in content["categories"] if c["isthing"]}
        folder = target / "raw" / split
        (folder / "panoptic").mkdir(parents=True)
        for number, annotation in enumerate(content["annotations"]):
            png = np.asarray(Image.open(raw / "panoptic" / annotation["file_name"])).copy()
            ids = png.astype(int) @ [1, 256, 65536]
            if keep == "stuff":
                gone = [s["id"] for s in annotation["segments_info"] if s["category_id"] in things]
            else:
                gone = [s["id"] for s in annotation["segments_info"]] if number else []
            png[np.isin(ids, gone)] = 0
            segments = annotation["segments_info"]
            annotation["segments_info"] = [s for s in segments if s["id"] not in gone]
            Image.fromarray(png).save(folder / "panoptic" / annotation["file_name"])
        (folder / "panoptic.json").write_text(json.dumps(content))
        splits[split] = PanopticSplit(raw / "images", folder / "panoptic.json", folder / "panoptic")
    write_data_file(target / "tiny/tiny.yaml", "tiny", splits)


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["stuff", "one image"])
def test_images_without_things_or_with_nothing_but_void(
    tiny_root, make_args, tmp_path, monkeypatch, keep
):
    spoiled(tiny_root, tmp_path, keep)
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    main(make_args())
    metrics = evaluation(tmp_path / "run")
    assert metrics["panoptic_seg"]["PQ_st"] is not None
    if keep == "stuff":
        assert metrics["bbox"]["AP"] is None  # no truth, no AP
    cfg = load_config(str(tmp_path / "run/config.yaml"), [])
    complete_config(cfg)
    trained_on = len(Trainer.build_test_loader(cfg, "tiny_train").dataset)
    assert trained_on == (8 if keep == "stuff" else 1)
