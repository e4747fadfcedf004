"""Processes that find different things stop together, with the reason. Two machines without shared
storage are two processes with working directories of their own."""

import argparse
import json
import os
import re
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from detectron2.data import DatasetCatalog
from detectron2.utils import comm

from ocr_panoptic.engine import load_config, run_program
from ocr_panoptic.engine.agreement import Poll, agree, stop_together
from ocr_panoptic.engine.launch import TIMEOUT, _run_and_leave
from ocr_panoptic.errors import UserError
from train_net import main


def fail_in(rank: int, function: Callable, *args: object) -> None:
    with stop_together():
        if comm.get_rank() == rank:
            function(*args)


def scenarios(args: argparse.Namespace, cfg: None) -> dict[str, str]:
    """Name -> the error of this process, or ""; all processes come to the end of each."""
    rank, found = comm.get_rank(), {}

    def attempt(name: str, function: Callable, *args: object) -> None:
        try:
            function(*args)
            found[name] = ""
        except Exception as e:
            found[name] = f"{type(e).__name__}: {e}"

    attempt("message", fail_in, 1, load_config, "nowhere.yaml", [])
    attempt("bug", fail_in, 1, lambda: 1 / 0)
    attempt("no fault", fail_in, 2, print)
    attempt("equal", agree, {"x": [1, 2], "y": None})
    attempt("unequal", agree, {"x": 1, "y": rank})

    os.chdir(f"machine{rank}")
    other = [*args.opts, "SOLVER.BASE_LR", "0.5"] if rank else args.opts
    attempt("arguments", main, argparse.Namespace(**{**vars(args), "opts": other}))
    attempt("other checkpoint", main, args)
    if rank:
        shutil.rmtree("run")
    attempt("no checkpoint", main, args)
    if rank:
        DatasetCatalog.remove("tiny_train")
        os.environ["DETECTRON2_DATASETS"] = "nowhere"
    attempt("no data", main, args)

    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert group.options._timeout == TIMEOUT
    return found


def worker(rank: int, folder: Path, args: argparse.Namespace) -> None:
    os.chdir(folder)
    short = timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/init", short, world_size=2, rank=rank)
    comm.create_local_process_group(2)
    found = _run_and_leave(scenarios, args, None)
    (folder / f"{rank}.json").write_text(json.dumps(found))


@pytest.fixture
def errors(tiny_data, make_args, tmp_path, forks) -> list[dict[str, str]]:
    for rank, last in enumerate(("model_0000008.pth", "model_0000004.pth")):
        folder = tmp_path / f"machine{rank}/run"
        folder.mkdir(parents=True)
        (folder / "last_checkpoint").write_text(last)
        torch.save({}, folder / last)
    args = make_args("DATASETS.TEST", "()", "OUTPUT_DIR", "run", flags=("--resume",))
    mp.start_processes(worker, (tmp_path, args), nprocs=2)
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_all_stop_with_the_reason(errors):
    first, second = errors

    def stops(name: str, reason: str) -> None:
        """The second process has the reason, and the first that of the second."""
        assert reason in second[name] and "Another process" not in second[name]
        assert (
            re.search(r"Another process .*\n  process 1 \(", first[name]) and reason in first[name]
        )
        assert "has to be on storage that machines share" in first[name]

    def differs(name: str, *values: str) -> None:
        """Both say what differs, and where."""
        assert first[name] == second[name]
        pattern = "The processes do not agree.\n  {}: {} in process 0 .*, {} in process 1 .*\nStart"
        assert re.search(pattern.format(*map(re.escape, values)), first[name]), first[name]

    stops("message", "--config-file nowhere.yaml does not exist")
    assert second["bug"].startswith("ZeroDivisionError") and "in <lambda>" in first["bug"]
    assert first["no fault"] == second["no fault"] == first["equal"] == second["equal"] == ""
    differs("unequal", "y", "0", "1")
    differs("arguments", "SOLVER.BASE_LR", "0.02", "0.5")
    differs("other checkpoint", "checkpoint", "'run/model_0000008.pth'", "'run/model_0000004.pth'")
    stops("no checkpoint", "--resume found no checkpoint in OUTPUT_DIR=run")
    stops("no data", "DATASETS.TRAIN: Data set 'tiny_train' is not registered")


def test_one_process_keeps_its_error():
    with pytest.raises(ZeroDivisionError), stop_together():
        raise ZeroDivisionError
    agree({"x": 1})


@pytest.mark.parametrize(
    "rank, faults, is_shown",
    [
        (0, ["a", "a"], True),
        (1, ["a", "a"], False),  # the main process says the same
        (1, ["b", "a"], True),
        (1, [None, "a"], False),  # the main process says what the others have found
        (0, [None, "a"], True),
        (1, ["a", None], False),
        (0, [None, None], None),
    ],
)
def test_a_reason_is_shown_once(monkeypatch, caplog, rank, faults, is_shown):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(comm, "get_rank", lambda: rank)
    monkeypatch.setattr(comm, "all_gather", lambda _: [why and ("p", why) for why in faults])

    @stop_together()
    def start() -> None:
        if faults[rank]:
            raise UserError(faults[rank])

    if is_shown is None:
        run_program(start)
        return
    with pytest.raises(SystemExit):
        run_program(start)
    shown = [r for r in caplog.records if r.levelname == "ERROR"]
    assert len(shown) == is_shown


def ask(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", f"file://{folder}/init", world_size=2, rank=rank)
    poll, answers = Poll(), []
    for i in range(4):
        answers.append(poll.largest(15 if (rank, i) == (1, 1) else 0))
    (folder / f"{rank}.json").write_text(json.dumps(answers))
    dist.destroy_process_group()


def test_what_one_process_says_all_know_in_the_next_iteration(tmp_path, forks):
    mp.start_processes(ask, (tmp_path,), nprocs=2)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert found == [[0, 0, 15, 0]] * 2
    assert [Poll().largest(number) for number in (0, 9)] == [0, 9]  # of a process alone
