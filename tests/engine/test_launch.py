"""Processes that join, and leave cleanly."""

from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp
from detectron2.utils import comm

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


def test_no_gloo_thread_outlives_its_group(tmp_path):
    """Such a thread can abort the process while Python shuts down."""
    mp.start_processes(worker, (tmp_path,), nprocs=2, start_method="spawn")
