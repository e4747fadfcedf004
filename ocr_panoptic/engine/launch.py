"""Starting one process, several on this machine, or this machine's share of many."""

import argparse
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
        main, args.num_gpus, args.num_machines, args.machine_rank, args.dist_url, args=(args,)
    )


def _join_torchrun(main: Callable[[argparse.Namespace], Any], args: argparse.Namespace) -> Any:
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if has_gpu else "gloo")
    try:
        comm.create_local_process_group(int(os.environ["LOCAL_WORLD_SIZE"]))
        comm.synchronize()
        return main(args)
    finally:
        dist.destroy_process_group()
