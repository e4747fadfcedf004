"""Starting one process, several on this machine, or this machine's share of many."""

import argparse
import gc
import logging
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from detectron2.engine import launch as detectron2_launch
from detectron2.utils import comm


def launch(main: Callable[[argparse.Namespace], Any], args: argparse.Namespace) -> Any:
    """
    Run ``main(args)`` in every process that the arguments ask for.

    Under ``torchrun`` the processes exist already and are joined. Otherwise Detectron2 starts
    ``args.num_gpus`` of them; where torch sees no GPU at all they are CPU processes (gloo).

    Returns:
        what ``main`` returns, where it runs in this very process

    Raises:
        ValueError: if more GPUs are asked for than there are.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _join_torchrun(main, args)
    num_gpus = torch.cuda.device_count()
    if args.num_gpus < 1:
        raise ValueError(
            f"--num-gpus is {args.num_gpus}, but at least one process is needed. "
            "To train on the CPU keep --num-gpus 1 and set MODEL.DEVICE cpu."
        )
    if 0 < num_gpus < args.num_gpus:
        raise ValueError(
            f"--num-gpus is {args.num_gpus}, but torch sees {num_gpus} GPU(s) on this machine "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}). "
            f"Use --num-gpus {num_gpus}."
        )
    if num_gpus == 0 and args.num_gpus > 1:
        logging.getLogger(__name__).warning(
            "torch sees no GPU: --num-gpus %d starts that many CPU processes", args.num_gpus
        )
    if args.num_gpus * args.num_machines == 1:
        return main(args)
    return detectron2_launch(
        _run_and_leave,
        args.num_gpus,
        args.num_machines,
        args.machine_rank,
        args.dist_url,
        args=(main, args),
    )


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
    result = main(args)
    leave_process_group()
    return result


def _join_torchrun(main: Callable[[argparse.Namespace], Any], args: argparse.Namespace) -> Any:
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if has_gpu else "gloo")
    comm.create_local_process_group(int(os.environ["LOCAL_WORLD_SIZE"]))
    comm.synchronize()
    return _run_and_leave(main, args)
