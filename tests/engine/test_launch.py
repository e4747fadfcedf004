"""Processes that join, and leave cleanly."""

import logging
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from detectron2.utils import comm

from ocr_panoptic.engine import launch, load_config
from ocr_panoptic.engine.launch import TIMEOUT, leave_process_group
from ocr_panoptic.formats.yaml_file import read_yaml


def gloo_threads() -> list[str]:
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return [name for name in names if "gloo" in name]


def worker(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", f"file://{folder}/init", world_size=2, rank=rank)
    comm.create_local_process_group(2)
    assert comm.gather(rank) == ([0, 1] if rank == 0 else [])
    assert gloo_threads()
    leave_process_group()
    assert not gloo_threads()
    assert comm.get_world_size() == 1 and comm.get_local_rank() == 0
    (folder / f"rank{rank}_left").touch()


@pytest.mark.slow
def test_no_gloo_thread_outlives_its_group(tmp_path, forks):
    """A thread that does can abort the process while Python shuts down."""
    mp.start_processes(worker, (tmp_path,), nprocs=2)
    assert {p.name for p in tmp_path.glob("*_left")} == {"rank0_left", "rank1_left"}


def make_a_mistake(args, cfg) -> None:
    logging.basicConfig(force=True)
    load_config("nowhere.yaml", [])


TWO = ("--num-gpus", "2", "--dist-url", "auto")


def test_a_users_mistake_ends_all_processes_without_a_traceback(make_args, forks, capfd):
    with pytest.raises(SystemExit) as end:
        launch(make_a_mistake, make_args(flags=TWO))
    assert end.value.code == 1
    printed = "".join(capfd.readouterr())
    assert "--config-file nowhere.yaml does not exist" in printed
    assert "Traceback" not in printed


def be_terminated(args, cfg) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has the handler of its parent
    if comm.get_rank() == 1:
        signal.raise_signal(signal.SIGTERM)
    time.sleep(5)  # launch ends it


def test_a_signal_is_no_defect(make_args, forks, caplog):
    """A process that does not listen to it, as in a prediction, ends by it."""
    with pytest.raises(SystemExit) as end:
        launch(be_terminated, make_args(flags=TWO))
    assert end.value.code == 128 + signal.SIGTERM
    assert "Stopped by SIGTERM" in caplog.text


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")


@pytest.fixture
def torchrun(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


def test_a_config_is_read_once(make_args, one_gpu, monkeypatch, tiny_data):
    """Before there are processes, with --data, and each of its files."""
    module, files = sys.modules["ocr_panoptic.engine.config_files"], []
    monkeypatch.setattr(module, "read_yaml", lambda file: files.append(file) or read_yaml(file))
    args = make_args("DATASETS.TEST", "()", flags=("--data", str(tiny_data / "tiny/tiny.yaml")))
    found = launch(lambda args, cfg: cfg, args)
    assert (str(tiny_data / "tiny/tiny.yaml"),) == found.DATASETS.FILES
    assert found.DATASETS.TEST == () and found.MODEL.OCR.CHANNELS == 32
    assert 1 < len(files) == len(set(files))


@pytest.mark.parametrize("given, threads", [(None, "3"), ("5", "5")])
def test_processes_on_the_cpu_of_a_gpu_machine(
    make_args, one_gpu, monkeypatch, caplog, given, threads
):
    """Detectron2 takes NCCL wherever it sees a GPU; processes share the cores."""
    names, found = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"), []
    monkeypatch.delenv(names[1], raising=False)
    if given:
        monkeypatch.setenv(names[1], given)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)

    def run(*_, **__) -> None:
        found.append([os.environ[name] for name in names])
        monkeypatch.setenv("OF_ANOTHER_THREAD", "1")

    # engine.launch is the function
    monkeypatch.setattr(sys.modules["ocr_panoptic.engine.launch"], "detectron2_launch", run)
    launch(print, make_args("MODEL.DEVICE", "cpu", flags=("--num-gpus", "2")))
    assert found == [["", threads]]
    assert [os.environ.get(name) for name in names] == ["3", given]
    assert os.environ["OF_ANOTHER_THREAD"] == "1"
    assert "MODEL.DEVICE is cpu: --num-gpus 2 starts that many CPU processes" in caplog.text


def test_processes_of_torchrun_on_the_cpu_of_a_gpu_machine(
    make_args, one_gpu, torchrun, monkeypatch
):
    class Joined(Exception):
        pass

    def join(backend: str, timeout: timedelta) -> None:
        raise Joined(backend, timeout)

    monkeypatch.setattr(dist, "init_process_group", join)
    with pytest.raises(Joined) as joined:
        launch(print, make_args("MODEL.DEVICE", "cpu"))
    assert joined.value.args == ("gloo", TIMEOUT)


MACHINES = "--num-machines 2 --dist-url"
WAITING = r"--dist-url is .*each of the 2 machines .*tcp://ADDRESS"


@pytest.mark.parametrize(
    "fixtures, flags, fault",
    [
        (["one_gpu"], "--num-gpus 2", "--num-gpus is 2, but torch sees 1 GPU.*--num-gpus 1"),
        (["one_gpu"], "--num-gpus 0", "--num-gpus is 0"),
        (
            *(["one_gpu", "torchrun"], ""),
            r"torchrun starts 2 processes .* sees 1 GPU.*=3\). Use --nproc-per-node 1",
        ),
        (["torchrun"], "--num-gpus 2", "--num-gpus 2 would have no effect.*--nproc-per-node"),
        (["torchrun"], "--num-machines 2", "--num-machines 2 would have no .*--nproc-per-node"),
        ([], f"{MACHINES} tcp://127.0.0.1:5000", WAITING),
        ([], f"{MACHINES} tcp://localhost:5000", WAITING),
        ([], f"{MACHINES} tcp://[::1]:5000", WAITING),
        ([], f"{MACHINES} auto", WAITING),
        (
            *([], f"{MACHINES} tcp://10.0.0.1:5000 --machine-rank 2"),
            "--machine-rank is 2, .* --num-machines 2 are counted",
        ),
    ],
)
def test_processes_that_cannot_be_started(request, make_args, fixtures, flags, fault):
    for name in fixtures:
        request.getfixturevalue(name)
    with pytest.raises(ValueError, match=fault):
        launch(print, make_args("MODEL.DEVICE", "auto", flags=tuple(flags.split())))
