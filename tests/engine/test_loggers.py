"""LOGGERS: services receive the values of metrics.json."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from train_net import Trainer, setup

TRAINING = ("TEST.EVAL_PERIOD", 2)


class Service(ModuleType):
    """A stand-in for both packages, as far as they are used."""

    def __init__(self, name: str):
        super().__init__(name)
        self.calls, self.values, self.id = [], {}, name

    def init(self, **keys):
        self.calls.append(("begin", keys["id"]))
        self.log = lambda values, step: self.values.setdefault(step, {}).update(values)
        return self

    def start_run(self, run_id, **_):
        self.calls.append(("begin", run_id))
        return SimpleNamespace(info=SimpleNamespace(run_id="mlflow"))

    def log_params(self, keys):
        assert keys["SOLVER.MAX_ITER"] == "3"  # only the first run logs them

    def log_metrics(self, values, step):
        self.values.setdefault(step, {}).update(values)

    def finish(self, exit_code):
        self.calls.append(("end", exit_code))

    def end_run(self, status):
        self.calls.append(("end", int(status == "FAILED")))


def train(args) -> dict[int, dict]:
    """Train, and return the values in metrics.json by iteration."""
    trainer = Trainer(setup(args)[0])
    trainer.resume_or_load(args.resume)
    trainer.train()
    lines = Path(trainer.cfg.OUTPUT_DIR, "metrics.json").read_text().splitlines()
    found = {}
    for row in map(json.loads, lines):
        found.setdefault(row.pop("iteration"), {}).update(row)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_service_gets_all_values_also_of_a_resumed_run(
    tiny_data, semantic_args, monkeypatch, name
):
    service = Service(name)
    monkeypatch.setitem(sys.modules, name, service)
    args = semantic_args("LOGGERS", f"['{name}']", *TRAINING)
    written = train(args)
    sent, names = dict(service.values), str.maketrans(dict.fromkeys("()", "_"))
    if name == "mlflow":  # MLflow refuses brackets
        written = {i: {k.translate(names): v for k, v in row.items()} for i, row in written.items()}
    assert json.dumps(sent, sort_keys=True) == json.dumps(written, sort_keys=True)  # NaN is NaN
    assert any("sem_seg/mIoU" in values for values in sent.values())
    args.opts += ["SOLVER.MAX_ITER", "4"]
    args.resume = True
    train(args)
    assert service.calls == [("begin", None), ("end", 0), ("begin", name), ("end", 0)]
    assert {*service.values} == {0, 1, 2, 3, 4}


@pytest.mark.slow
def test_a_service_that_fails(tiny_data, semantic_args, monkeypatch, caplog):
    service = Service("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", service)
    monkeypatch.setattr(service, "log_metrics", lambda *_, **__: 1 / 0)
    args = semantic_args("LOGGERS", "['mlflow']", "TEST.EVAL_PERIOD", 0, "DATASETS.TEST", "()")
    assert train(args) and "mlflow failed (division by zero)" in caplog.text
    monkeypatch.setattr(Trainer, "run_step", lambda self: 1 / 0)
    args.opts += ["OUTPUT_DIR", args.opts[1] + "2"]
    with pytest.raises(ZeroDivisionError):
        train(args)
    assert service.calls[-1] == ("end", 1)
    monkeypatch.setattr(service, "start_run", lambda **_: 1 / 0)
    with pytest.raises(ValueError, match="LOGGERS: mlflow cannot start a run: division by zero"):
        train(args)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ModuleNotFoundError, match="pip install mlflow"):
        train(args)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_real_services(tiny_data, semantic_args, tmp_path, monkeypatch, name):
    service = pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    if name == "mlflow":
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        service.set_tracking_uri((tmp_path / "mlruns").as_uri())
    train(semantic_args("LOGGERS", f"['{name}']", *TRAINING))
    if name == "wandb":
        (run,) = (tmp_path / "run/wandb").glob("offline-run-*/run-*.wandb")
        assert b"sem_seg/mIoU" in run.read_bytes()
    else:
        (run,) = service.search_runs(output_format="list")
        assert "sem_seg/mIoU" in run.data.metrics and run.data.params["SOLVER.MAX_ITER"] == "3"
        assert run.info.status == "FINISHED"
