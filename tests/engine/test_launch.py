"""Processes that join, and leave cleanly."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from detectron2.utils import comm

from ocr_panoptic.engine import launch
from ocr_panoptic.engine.launch import leave_process_group


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


def test_no_gloo_thread_outlives_its_group(tmp_path):
    """Such a thread can abort the process while Python shuts down."""
    mp.start_processes(worker, (tmp_path,), nprocs=2, start_method="spawn")
    assert {p.name for p in tmp_path.glob("*_left")} == {"rank0_left", "rank1_left"}


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")


@pytest.fixture
def torchrun(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


def test_more_processes_than_gpus(make_args, one_gpu):
    args = make_args("MODEL.DEVICE", "auto", flags=("--num-gpus", "2"))
    with pytest.raises(ValueError, match=r"--num-gpus is 2, but torch sees 1 GPU.*--num-gpus 1"):
        launch(print, args)
    with pytest.raises(ValueError, match="--num-gpus is 0"):
        launch(print, make_args(flags=("--num-gpus", "0")))


def test_more_processes_of_torchrun_than_gpus(make_args, one_gpu, torchrun):
    expected = r"torchrun starts 2 processes .* sees 1 GPU.*=3\). Use --nproc-per-node 1"
    with pytest.raises(ValueError, match=expected):
        launch(print, make_args("MODEL.DEVICE", "auto"))


def test_processes_on_the_cpu_of_a_gpu_machine(make_args, one_gpu, monkeypatch, caplog):
    """Detectron2 takes NCCL wherever it sees a GPU."""
    visible = []
    monkeypatch.setattr(
        sys.modules["ocr_panoptic.engine.launch"],  # engine.launch is the function
        "detectron2_launch",
        lambda *_, **__: visible.append(os.environ["CUDA_VISIBLE_DEVICES"]),
    )
    launch(print, make_args("MODEL.DEVICE", "cpu", flags=("--num-gpus", "2")))
    assert visible == [""] and os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert "MODEL.DEVICE is cpu: --num-gpus 2 starts that many CPU processes" in caplog.text


def test_processes_of_torchrun_on_the_cpu_of_a_gpu_machine(
    make_args, one_gpu, torchrun, monkeypatch
):
    class Joined(Exception):
        pass

    def join(backend: str) -> None:
        raise Joined(backend)

    monkeypatch.setattr(dist, "init_process_group", join)
    with pytest.raises(Joined, match="gloo"):
        launch(print, make_args("MODEL.DEVICE", "cpu"))
