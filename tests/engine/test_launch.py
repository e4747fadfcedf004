"""Processes join and end cleanly."""

import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.engine import DefaultTrainer
from detectron2.utils import comm
from torch import nn

from ocr_panoptic.config.files import load_config
from ocr_panoptic.data.catalog import register_again, registered_data
from ocr_panoptic.engine import launch
from ocr_panoptic.engine.launch import leave_process_group
from train_net import Trainer, setup


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
    """Such a thread can abort the process while Python shuts down."""
    mp.start_processes(worker, (tmp_path,), nprocs=2)
    assert {p.name for p in tmp_path.glob("*_left")} == {"rank0_left", "rank1_left"}


def test_processes_of_torchrun_on_the_cpu_of_a_gpu_machine(monkeypatch):
    class Joined(Exception):
        pass

    def join(backend: str) -> None:
        raise Joined(backend)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setattr(dist, "init_process_group", join)
    with pytest.raises(Joined, match="gloo"):
        launch(print, cfg=load_config("", {"MODEL.DEVICE": "cpu"}))


@pytest.mark.parametrize("gpus", [0, 1])
def test_processes_that_cannot_be_started(monkeypatch, gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(ValueError, match=f"--num-gpus is 2, but torch sees {gpus} GPU.*torchrun"):
        launch(print, 2, cfg=load_config(""))


def test_an_evaluation_uses_the_main_processs_running_statistics(small_cfg, monkeypatch):
    """Process 0, which saves, sends each buffer before the evaluation starts."""
    order = []

    def broadcast(tensor: torch.Tensor, src: int) -> None:
        assert src == 0
        order.append("buffer")
        tensor.fill_(7)

    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: 2)
    monkeypatch.setattr("detectron2.utils.comm.is_main_process", lambda: False)
    monkeypatch.setattr(dist, "broadcast", broadcast)
    monkeypatch.setattr(DefaultTrainer, "test", lambda *_: order.append("evaluation"))
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    Trainer.test(small_cfg(), model)
    assert order == ["buffer"] * 3 + ["evaluation"]
    assert model[1].running_mean.eq(7).all() and model[1].running_var.eq(7).all()


def test_what_a_new_process_is_given(tiny_data, make_args, clean_catalog):
    """The config, the start and the data sets survive the way to another process."""
    cfg, start = setup(make_args())
    names = (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST)
    given = pickle.dumps((cfg, start, registered_data(names)))
    records = DatasetCatalog.get("tiny_train")
    for name in names:
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)
    cfg_there, start_there, data = pickle.loads(given)
    assert cfg_there == cfg and start_there == start
    register_again(data)
    assert DatasetCatalog.get("tiny_train") == records
    assert "sky" in MetadataCatalog.get("tiny_val").stuff_classes
