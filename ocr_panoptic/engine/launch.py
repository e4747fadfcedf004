"""Starting one process, several on this machine, or this machine's share of many."""

import argparse
import contextlib
import datetime
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlparse

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.engine import launch as detectron2_launch
from detectron2.utils import comm
from torch.multiprocessing import ProcessExitedException

from ocr_panoptic.errors import UserError
from ocr_panoptic.program import run_program

from .config_files import load_arguments
from .run_claim import release_all
from .stopping import NUMBERS, Stopped, passing_on_signals
from .undisturbed import kept_variables

# How long a process waits for the others. The main process alone combines the parts of an
# evaluation, writes checkpoints, and may download weights; ten minutes, torchrun's default, are
# too short for a slow disk or a large data set. A machine that is lost is noticed no later.
TIMEOUT = datetime.timedelta(hours=2)

# Of what each process does: its arguments, and the config that they load if it is loaded already.
Main = Callable[[argparse.Namespace, CfgNode | None], Any]


def launch(main: Main, args: argparse.Namespace) -> Any:
    """
    Run ``main(args, cfg)`` in every process that the arguments ask for. ``cfg`` is the config that
    they load; None where torch sees no GPU, and MODEL.DEVICE need not be known before.

    Under ``torchrun`` the processes exist already and are joined. Otherwise Detectron2 starts
    ``args.num_gpus`` of them. Where torch sees no GPU at all, or MODEL.DEVICE is cpu, they are CPU
    processes (gloo).

    Returns:
        what ``main`` returns, where it runs in this very process

    Raises:
        ValueError: if more GPUs are asked for than there are, other processes than torchrun's, or
            several machines with an address that only one of them has.
    """
    cfg = load_arguments(args) if torch.cuda.is_available() else None
    on_gpu = cfg is not None and cfg.MODEL.DEVICE != "cpu"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _join_torchrun(main, args, cfg, on_gpu)
    _check_machines(args)
    num_gpus = torch.cuda.device_count()
    if args.num_gpus < 1:
        raise UserError(
            f"--num-gpus is {args.num_gpus}, but at least one process is needed. "
            "To train on the CPU keep --num-gpus 1 and set MODEL.DEVICE cpu."
        )
    if on_gpu and num_gpus < args.num_gpus:
        raise UserError(
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
        return main(args, cfg)
    # Detectron2 takes NCCL where it sees GPUs, and NCCL has no operations on the CPU.
    try:
        environment = contextlib.nullcontext() if on_gpu else _of_cpu_processes(args.num_gpus)
        with passing_on_signals(), environment:
            return detectron2_launch(
                _run_and_leave,
                args.num_gpus,
                args.num_machines,
                args.machine_rank,
                args.dist_url,
                args=(main, args, cfg),
                timeout=TIMEOUT,
            )
    except ProcessExitedException as e:
        if -e.exit_code in NUMBERS:
            name = signal.Signals(-e.exit_code).name
            logging.getLogger(__name__).error("Stopped by %s", name)
            raise SystemExit(128 - e.exit_code) from e
        if e.exit_code != 1 and e.exit_code <= 128:
            raise
        raise SystemExit(e.exit_code) from e  # the process has said why, see run_program


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


def _run_and_leave(main: Main, args: argparse.Namespace, cfg: CfgNode | None) -> Any:
    # Detectron2 gathers by Gloo, and where NCCL is the first group's that one has its own timeout.
    set_timeout = getattr(
        dist, "set_timeout", dist.distributed_c10d._set_pg_timeout
    )  # its old name
    set_timeout(TIMEOUT, comm._get_global_gloo_group())
    # Not in a "finally": where one process fails the others do not come to leave with it.
    try:
        result = run_program(main, args, cfg)
    except Stopped:
        leave_process_group()
        raise
    except SystemExit as e:
        if dist.get_world_size() == 1:
            raise
        # The reason is out, and Gloo's threads may abort a normal end.
        release_all()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(e.code if isinstance(e.code, int) else 1)
    leave_process_group()
    return result


def _join_torchrun(main: Main, args: argparse.Namespace, cfg: CfgNode | None, on_gpu: bool) -> Any:
    given = {"--num-gpus": args.num_gpus, "--num-machines": args.num_machines}
    if given := [f"{flag} {value}" for flag, value in given.items() if value != 1]:
        raise UserError(
            f"torchrun has started the processes, so {' and '.join(given)} would have no effect. "
            "Leave it out, and use torchrun's --nproc-per-node and --nnodes."
        )
    processes, num_gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if on_gpu and processes > num_gpus:
        raise UserError(
            f"torchrun starts {processes} processes on this machine, but torch sees {num_gpus} "
            f"GPU(s) ({_visible()}). Use --nproc-per-node {num_gpus}, or set MODEL.DEVICE cpu."
        )
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    comm.create_local_process_group(processes)
    comm.synchronize()
    return _run_and_leave(main, args, cfg)


def _check_machines(args: argparse.Namespace) -> None:
    if not 0 <= args.machine_rank < args.num_machines:
        raise UserError(
            f"--machine-rank is {args.machine_rank}, but the machines of --num-machines "
            f"{args.num_machines} are counted from 0."
        )
    host = urlparse(args.dist_url).hostname
    if args.num_machines > 1 and (
        args.dist_url == "auto" or host in ("localhost", "::1") or (host or "").startswith("127.")
    ):
        raise UserError(
            f"--dist-url is {args.dist_url}, which each of the {args.num_machines} machines takes "
            "for itself, so they would wait for each other. Give all of them the address of the "
            "machine with --machine-rank 0 and a free port there: --dist-url tcp://ADDRESS:PORT."
        )


@contextlib.contextmanager
def _of_cpu_processes(number: int) -> Iterator[None]:
    """The environment in which so many are started: GPUs are hidden from them, as CUDA may run in
    this process already, and they share the cores. With a thread for each core in every process
    two of them take twice the CPU time."""
    with kept_variables("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // number)))
        yield


def _visible() -> str:
    return f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}"
