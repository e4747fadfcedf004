"""Run a function in this process, in a new process for each GPU, or in torchrun's processes."""

import gc
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from detectron2.engine import launch as detectron2_launch
from detectron2.utils import comm
from torch.multiprocessing import ProcessExitedException

from ocr_panoptic.data.catalog import Registration, register_again, registered_data
from ocr_panoptic.errors import UserError
from ocr_panoptic.program import run_program

from .hooks import Stopped


def launch(
    main: Callable[..., Any],
    num_gpus: int = 1,
    num_machines: int = 1,
    machine_rank: int = 0,
    dist_url: str = "auto",
    *,
    args: Sequence[Any] = (),
    cfg: CfgNode,
    imports: Sequence[str] = (),
) -> Any:
    """
    Run ``main(*args)`` in every process; return the result (None if only child processes ran).

    New processes know the data sets of this one.

    Args:
        num_gpus: number of processes on this machine; torchrun's own number replaces it.
        num_machines, machine_rank, dist_url: as for Detectron2's ``launch``.
        cfg: completed config, which names the device and the data sets.
        imports: modules that new processes import first.
    """
    gpus, env = torch.cuda.device_count(), os.environ
    if "TORCHELASTIC_RUN_ID" in env:  # torchrun has started this process
        on_gpu = gpus > 0 and cfg.MODEL.DEVICE != "cpu"
        if on_gpu:
            torch.cuda.set_device(int(env["LOCAL_RANK"]))
        dist.init_process_group("nccl" if on_gpu else "gloo")
        comm.create_local_process_group(int(env["LOCAL_WORLD_SIZE"]))
        return _run_and_leave(main, *args)
    if num_gpus * num_machines == 1:
        return main(*args)
    if num_gpus > gpus:
        raise UserError(
            f"--num-gpus is {num_gpus}, but torch sees {gpus} GPU(s) on this machine. "
            "Lower the number, or start N processes on the CPU with torchrun: torchrun "
            "--nproc-per-node N -m ocr_panoptic ..."
        )
    names = (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST)
    data = registered_data(name for name in names if name in DatasetCatalog)
    try:
        return detectron2_launch(
            run_program,
            num_gpus,
            num_machines,
            machine_rank,
            dist_url,
            args=(_run_in_new_process, imports, data, main, *args),
        )
    except ProcessExitedException as e:  # the process has reported its error
        raise SystemExit(e.exit_code if e.exit_code > 0 else 128 - e.exit_code) from e


def _run_in_new_process(
    imports: Sequence[str],
    data: Sequence[Registration | str],
    main: Callable[..., Any],
    *args: Any,
) -> Any:
    for name in imports:
        importlib.import_module(name)
    register_again(data)
    return _run_and_leave(main, *args)


def _run_and_leave(main: Callable[..., Any], *args: Any) -> Any:
    try:
        result = main(*args)
    except Stopped:
        leave_process_group()
        raise
    leave_process_group()  # not after a failure: the other processes would not join
    return result


def leave_process_group() -> None:
    """Destroy the process groups of ``torch.distributed``; every process must call this."""
    # Detectron2's comm holds process groups, which keep Gloo's threads alive. If such a thread
    # releases a tensor during the shutdown, the process aborts ("terminate called without ...").
    comm.synchronize()
    comm._get_global_gloo_group.cache_clear()
    comm.create_local_process_group.cache_clear()
    comm._LOCAL_PROCESS_GROUP = None
    gc.collect()  # models in DistributedDataParallel also hold the groups
    dist.destroy_process_group()
