"""``ocr_panoptic.train`` and its like: what the commands do, in a process that goes on."""

import importlib
import json
import logging
import os
import random
import signal
import threading
import warnings

import numpy as np
import pytest
import torch
from detectron2.config import CfgNode

import ocr_panoptic
from ocr_panoptic.cli import call
from ocr_panoptic.engine import Trainer, run_claim
from ocr_panoptic.engine import undisturbed as undisturbed_module

pytestmark = pytest.mark.slow


@pytest.fixture
def tiny(tiny_data, make_args):
    """The config and the keys of a tiny run, without its OUTPUT_DIR."""
    args = make_args("SEED", 3)
    values = map(CfgNode._decode_cfg_value, args.opts[1::2])
    keys = dict(zip(args.opts[::2], values, strict=True))
    del keys["OUTPUT_DIR"]
    return args.config_file, keys


def state() -> dict[str, object]:
    """Return what belongs to the caller of a function."""
    _, keys, *counts = np.random.get_state()  # noqa: NPY002
    root, names = logging.getLogger(), ("ocr_panoptic", "detectron2", "fvcore", "torch")
    return {
        "python": random.getstate(),
        "numpy": [str(word) for word in (keys.tolist(), *counts)],
        "torch": torch.get_rng_state().tolist(),
        "seed": torch.initial_seed(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "environment": {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")},
        "handlers": [root.handlers[:], *(logging.getLogger(name).handlers[:] for name in names)],
        "filters": [handler.filters[:] for handler in root.handlers],
        "levels": [root.level, *(logging.getLogger(name).level for name in names)],
        "propagate": logging.getLogger("torch").propagate,
        "warnings": warnings.showwarning,
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "claims": dict(run_claim._claims),
        "threads running": {t.name for t in threading.enumerate() if not t.daemon},
    }


@pytest.fixture
def undisturbed():
    """The test leaves the state that it found."""
    random.seed(1), np.random.seed(2), torch.manual_seed(3)  # noqa: NPY002
    logging.getLogger("torch").addHandler(handler := logging.NullHandler())
    before = state()
    yield
    after = state()
    logging.getLogger("torch").removeHandler(handler)
    for name, value in before.items():
        assert after[name] == value, name


def test_training_twice_and_evaluation_are_those_of_the_commands(
    tiny, tmp_path, undisturbed, capsys
):
    config, keys = tiny
    found = ocr_panoptic.train(config, output=tmp_path / "a", deterministic=True, **keys)
    shown = capsys.readouterr().out
    assert "Training starts at iteration 0 of 3" in shown and "Panoptic quality" in shown
    again = ocr_panoptic.train(config, output=tmp_path / "b", deterministic=True, **keys)
    assert str(found) == str(again) and found["panoptic_seg"].keys() >= {"PQ", "SQ"}
    with undisturbed_module.undisturbed():  # traces of a command end with its process
        opts = [part for key, value in keys.items() for part in (key, str(value))]
        flags = ["--config-file", config, "--deterministic"]
        call("train", [*flags, *opts, "OUTPUT_DIR", str(tmp_path / "c")])
    trained = [torch.load(tmp_path / run / "model_final.pth")["model"] for run in "abc"]
    for weights in trained[1:]:
        assert weights.keys() == trained[0].keys()
        assert all(torch.equal(weights[name], trained[0][name]) for name in weights)

    measured = ocr_panoptic.evaluate(tmp_path / "a", output=tmp_path / "evaluated")
    files = [
        json.loads((tmp_path / run / "inference/tiny_val/metrics.json").read_text())
        for run in ("a", "c", "evaluated")
    ]
    assert files[0]["panoptic_seg"] == files[1]["panoptic_seg"] == files[2]["panoptic_seg"]
    assert measured["panoptic_seg"]["PQ"] == files[2]["panoptic_seg"]["PQ"]
    assert not (tmp_path / "evaluated/model_final.pth").exists()


def test_errors_are_raised(tiny, tmp_path, undisturbed):
    config, keys = tiny
    with pytest.raises(
        FileNotFoundError, match="Did you mean quick_schedules/panoptic_fpn_R_18_sce"
    ):
        ocr_panoptic.train("quick_schedules/panoptic_fpn_R_18_scene", **keys)
    with pytest.raises(ValueError, match="Unknown config key SOLVER.MAX_ITERS.*SOLVER.MAX_ITER?"):
        ocr_panoptic.train(config, output=tmp_path / "a", **keys, **{"SOLVER.MAX_ITERS": 3})
    with pytest.raises(ValueError, match="tiny_trian.*Similar names: tiny_train"):
        ocr_panoptic.train(config, output=tmp_path, **{**keys, "DATASETS.TRAIN": ("tiny_trian",)})
    with pytest.raises(FileNotFoundError, match="has no whole checkpoint"):
        (tmp_path / "config.yaml").write_text("SEED: 3\n")
        ocr_panoptic.evaluate(tmp_path)


@pytest.fixture
def trained_run(trained):
    with undisturbed_module.undisturbed():
        trained()


def test_a_training_of_the_caller_keeps_its_folder(tmp_path):
    run_claim.claim(tmp_path / "own")
    try:
        with undisturbed_module.undisturbed():
            run_claim.claim(tmp_path / "other")
        assert tmp_path / "own" in run_claim._claims
        assert tmp_path / "other" not in run_claim._claims
    finally:
        run_claim.release(tmp_path / "own")


def test_results_that_are_not_the_expected_ones(trained_run, tmp_path, undisturbed):
    """Results outside TEST.EXPECTED_RESULTS end the command."""
    expected = [["panoptic_seg", "PQ", 99.0, 0.1]]
    with pytest.raises(RuntimeError, match="ended with status 1"):
        ocr_panoptic.evaluate(tmp_path / "run", **{"TEST.EXPECTED_RESULTS": expected})


def test_ctrl_c_saves_and_is_raised(tiny, tmp_path, undisturbed, monkeypatch):
    config, keys = tiny
    run_step = Trainer.run_step

    def interrupted(self) -> None:
        run_step(self)
        if self.iter == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "run_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ocr_panoptic.train(config, output=tmp_path, **keys)
    assert (tmp_path / "model_0000001.pth").is_file()
    monkeypatch.setattr(Trainer, "run_step", run_step)
    ocr_panoptic.train(config, output=tmp_path, resume=True, **keys)
    assert torch.load(tmp_path / "model_final.pth")["iteration"] == 2


def test_handlers_of_the_caller_get_what_they_would_have_got(tiny, tmp_path):
    """Its level of a logger counts, not the one that log.txt needs."""

    class Kept(logging.Handler):
        def __init__(self):
            super().__init__()
            self.levels: list[int] = []

        def emit(self, record: logging.LogRecord) -> None:
            if record.name.startswith(("ocr_panoptic", "detectron2", "fvcore")):
                self.levels.append(record.levelno)

    config, keys = tiny
    kept, own = Kept(), logging.getLogger("ocr_panoptic")
    logging.getLogger().addHandler(kept)
    own.setLevel(logging.INFO)
    try:
        ocr_panoptic.train(config, output=tmp_path, **keys)
    finally:
        logging.getLogger().removeHandler(kept)
        own.setLevel(logging.NOTSET)
    assert logging.INFO in kept.levels and logging.DEBUG not in kept.levels
    assert "Config:" in (tmp_path / "log.txt").read_text()  # which DEBUG has


def test_export_is_a_function_whatever_was_imported(tmp_path):
    """test_wheel.py calls it with a trained model."""
    pytest.importorskip("onnxruntime")
    importlib.import_module("ocr_panoptic.workbench.exporting")
    for _ in range(2):
        with pytest.raises(ValueError, match="output model.pth: name a file that ends in .onnx"):
            ocr_panoptic.export(tmp_path, output="model.pth")
    with pytest.raises(FileNotFoundError, match="has no whole checkpoint"):
        ocr_panoptic.export(tmp_path, output=tmp_path / "model.onnx")


def test_check_of_a_training(tiny, tmp_path, undisturbed):
    config, keys = tiny
    report = ocr_panoptic.check(config=config, OUTPUT_DIR=str(tmp_path), **keys)
    assert not report.faults and "3 iterations of 2 images" in str(report)
    with pytest.raises(ValueError, match="nothing to check"):
        ocr_panoptic.check()
