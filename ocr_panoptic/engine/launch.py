"""Starting one process, several on this machine, or this machine's share of many."""

import argparse
import contextlib
import gc
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from detectron2.engine import launch as detectron2_launch
from detectron2.utils import comm
from torch.multiprocessing import ProcessExitedException

from .config_files import load_config
from .program import run_program


def launch(main: Callable[[argparse.Namespace], Any], args: argparse.Namespace) -> Any:
    """
    Run ``main(args)`` in every process that the arguments ask for.

    Under ``torchrun`` the processes exist already and are joined. Otherwise Detectron2 starts
    ``args.num_gpus`` of them. Where torch sees no GPU at all, or MODEL.DEVICE is cpu, they are CPU
    processes (gloo).

    Returns:
        what ``main`` returns, where it runs in this very process

    Raises:
        ValueError: if more GPUs are asked for than there are.
    """
    on_gpu = torch.cuda.is_available() and _device(args) != "cpu"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _join_torchrun(main, args, on_gpu)
    num_gpus = torch.cuda.device_count()
    if args.num_gpus < 1:
        raise ValueError(
            f"--num-gpus is {args.num_gpus}, but at least one process is needed. "
            "To train on the CPU keep --num-gpus 1 and set MODEL.DEVICE cpu."
        )
    if on_gpu and num_gpus < args.num_gpus:
        raise ValueError(
            f"--num-gpus is {args.num_gpus}, but torch sees {num_gpus} GPU(s) on this machine "
            f"({_visible()}). Use --num-gpus {num_gpus}."
        )
    if not on_gpu and args.num_gpus > 1:
        logging.getLogger(__name__).warning(
            "%s: --num-gpus %d starts that many CPU processes",
            "MODEL.DEVICE is cpu" if num_gpus else "torch sees no GPU",
            args.num_gpus,
        )
    if args.num_gpus * args.num_machines == 1:
        return main(args)
    # Detectron2 takes NCCL where it sees GPUs, and NCCL has no operations on the CPU.
    try:
        with contextlib.nullcontext() if on_gpu else _gpus_hidden():
            return detectron2_launch(
                _run_and_leave,
                args.num_gpus,
                args.num_machines,
                args.machine_rank,
                args.dist_url,
                args=(main, args),
            )
    except ProcessExitedException as e:
        if e.exit_code != 1:
            raise
        raise SystemExit(1) from e  # the process has said why, see run_program


def leave_process_group() -> None:
    """
    End this process's part in ``torch.distributed``; every process calls it, after its last
    exchange.

    Detectron2's ``comm`` keeps the groups that it made, and with them Gloo's threads. A thread
    that still releases a tensor while Python shuts down aborts the process ("terminate called
    without an active exception"): the groups have to be gone, and their threads joined, before.
    """
    comm.synchronize()
    comm._get_global_gloo_group.cache_clear()
    comm.create_local_process_group.cache_clear()
    comm._LOCAL_PROCESS_GROUP = None
    gc.collect()  # models in DistributedDataParallel hold the groups, too
    dist.destroy_process_group()


def _run_and_leave(main: Callable[[argparse.Namespace], Any], args: argparse.Namespace) -> Any:
    # Not in a "finally": where one process fails the others do not come to leave with it.
    result = run_program(main, args)
    leave_process_group()
    return result


def _join_torchrun(
    main: Callable[[argparse.Namespace], Any], args: argparse.Namespace, on_gpu: bool
) -> Any:
    processes, num_gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if on_gpu and processes > num_gpus:
        raise ValueError(
            f"torchrun starts {processes} processes on this machine, but torch sees {num_gpus} "
            f"GPU(s) ({_visible()}). Use --nproc-per-node {num_gpus}, or set MODEL.DEVICE cpu."
        )
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    comm.create_local_process_group(processes)
    comm.synchronize()
    return _run_and_leave(main, args)


@contextlib.contextmanager
def _gpus_hidden() -> Iterator[None]:
    """From the processes that are started within; in this one CUDA may run already."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


def _device(args: argparse.Namespace) -> str:
    return load_config(args.config_file, args.opts or []).MODEL.DEVICE


def _visible() -> str:
    return f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}"
