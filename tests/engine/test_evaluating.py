"""An evaluation beside the model: the same results, in order, and errors reach the caller."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from detectron2.evaluation import DatasetEvaluator

from ocr_panoptic.engine import Trainer, evaluating, setup
from ocr_panoptic.engine.evaluating import BesideTheModel
from ocr_panoptic.engine.task import task_of


class Noted(DatasetEvaluator):
    """Takes numbers slowly, and refuses -1."""

    def reset(self) -> None:
        self.taken, self.threads = [], set()

    def process(self, inputs: list, outputs: list) -> None:
        assert not torch.is_grad_enabled()
        if outputs == [-1]:
            raise ValueError("minus one")
        time.sleep(0.01)
        self.threads.add(threading.get_ident())
        self.taken += outputs

    def evaluate(self) -> dict:
        return {"taken": self.taken}


def test_batches_are_taken_in_order_and_few_are_held():
    inner = Noted()
    evaluator = BesideTheModel(inner)
    evaluator.reset()
    for i in range(8):
        evaluator.process([], [i])
        assert len(inner.taken) >= i - 1  # one in work, one waiting
    assert evaluator.evaluate() == {"taken": list(range(8))}
    assert threading.get_ident() not in inner.threads and len(inner.threads) == 1


@pytest.mark.parametrize("later", [0, 1, 2])
def test_an_error_reaches_the_caller(later):
    evaluator = BesideTheModel(Noted())
    evaluator.reset()
    with pytest.raises(ValueError, match="minus one"):
        for value in (0, -1, *range(later)):
            evaluator.process([], [value])
        evaluator.evaluate()


@pytest.mark.parametrize("device, kind", [("cpu", Noted), ("cuda", BesideTheModel)])
def test_evaluators_work_beside_a_gpu(small_cfg, monkeypatch, device, kind):
    """On a CPU the model has all cores."""
    task = SimpleNamespace(evaluator=lambda *_: Noted())
    monkeypatch.setattr(evaluating, "task_of", lambda cfg: task)
    cfg = small_cfg()
    cfg.MODEL.DEVICE = device
    assert type(Trainer.build_evaluator(cfg, "tiny_val")) is kind


@pytest.mark.slow
def test_the_files_of_an_evaluation_are_the_same(tiny_data, make_args, monkeypatch, tmp_path):
    """Byte by byte, predictions too; without a name of the folder in them."""
    written = []
    for beside in (False, True):
        cfg = setup(make_args("TEST.SAVE_PREDICTIONS", "True")).cfg.clone()
        cfg.defrost()
        cfg.OUTPUT_DIR = str(tmp_path / "out")

        def build(cls, cfg, name, beside=beside):
            folder = f"{cfg.OUTPUT_DIR}/{name}"
            evaluator = task_of(cfg).evaluator(cfg, name, folder)
            return BesideTheModel(evaluator) if beside else evaluator

        monkeypatch.setattr(Trainer, "build_evaluator", classmethod(build))
        torch.manual_seed(0)
        results = Trainer.test(cfg, Trainer.build_model(cfg).eval())
        files = sorted(p for p in (tmp_path / "out").rglob("*") if p.is_file())
        written.append((str(results), {str(p): p.read_bytes() for p in files}))
        for path in files:
            path.unlink()
    assert written[0] == written[1]
    assert len(written[0][1]) > 5
