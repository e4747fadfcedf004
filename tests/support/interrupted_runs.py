"""
Interrupt and resume small training runs, and compare the files that they write.

    interrupted_runs.py KIND ITERATION ARGUMENTS ...

As a script, this runs train_net.py with ARGUMENTS, and interrupts the training at ITERATION in the
way KIND (a key of ``INTERRUPTIONS``).
"""

import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import train_net
from ocr_panoptic.checkpoint import SafeCheckpointer
from ocr_panoptic.cli.train import argument_parser
from ocr_panoptic.program import run_program
from support.forked import Forked
from support.tiny_runs import TINY, TINY_SEMANTIC

# Settings of semantic runs with every kind of state that a resumed run could lose.
STATEFUL = [
    *(*TINY, *TINY_SEMANTIC, "DATASETS.TEST", "()", "SOLVER.STEPS", "()"),
    *("MODEL.OCR.CHANNELS", 16, "MODEL.OCR.KEY_CHANNELS", 8, "MODEL.OCR.DROPOUT", 0.5),
    *("SOLVER.IMS_PER_BATCH", 4, "SOLVER.ACCUMULATION_STEPS", 2, "DATALOADER.NUM_WORKERS", 1),
    *("SOLVER.OPTIMIZER", "AdamW", "SOLVER.BASE_LR", 1e-3, "SOLVER.WEIGHT_DECAY", 0.05),
    *("SOLVER.LAYER_DECAY", 0.7, "SOLVER.AMP.ENABLED", True),
    *("MODEL.EMA.ENABLED", True, "MODEL.EMA.DECAY", 0.75),
]
AT = 3  # the interrupted iteration; the last checkpoint before it has iteration 1


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise RuntimeError("interrupted")


def kill_in_the_next_save() -> None:
    save = torch.save

    def write_half(data: object, path: Path) -> None:
        save(data, path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        kill()

    torch.save = write_half


def kill_before_the_next_tag() -> None:
    SafeCheckpointer.tag_last_checkpoint = kill


INTERRUPTIONS = {
    "kill": kill,
    "kill in a save": kill_in_the_next_save,
    "kill before the tag": kill_before_the_next_tag,
    "signal": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exception": fail,
    "end": lambda: None,
}


class Interrupted(train_net.Trainer):
    """A trainer that calls ``interrupt`` before the iteration ``at``."""

    interrupt, at = INTERRUPTIONS["end"], -1

    def run_step(self) -> None:
        if self.iter == self.at:
            type(self).interrupt()
        super().run_step()


def run(words: Sequence[object], folder: Path, *, how: str = "end", processes: int = 1) -> int:
    """
    Train in 1 or 2 forks of this process, like torchrun; return the exit status of rank 0.

    ``words`` are arguments of train_net.py, and ``how`` is a key of ``INTERRUPTIONS``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, how, AT, *words, "OUTPUT_DIR", folder]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        env |= {"TORCHELASTIC_RUN_ID": "1", "TORCHELASTIC_USE_AGENT_STORE": "False"}
        env |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
    with open(folder / "stdout.txt", "a") as file:
        ranks = [{**env, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"[:processes]]
        started = [Forked(command, stdout=file, env=rank) for rank in ranks]
        status = started[0].wait(timeout=600)
        for other in started[1:]:  # torchrun also ends the others after a failure
            if other.wait(timeout=60) is None:
                os.kill(other.pid, signal.SIGKILL)
                other.wait()
    return status


def saved(folder: Path, name: str = "model_final") -> dict:
    return torch.load(folder / f"{name}.pth", weights_only=True)


def assert_same(a, b, path: str = "") -> None:
    """Check that two checkpoints (nested dicts and lists) are equal to the last bit."""
    assert type(a) is type(b), path
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), path
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            assert_same(x, y, f"{path}[{i}]")
    elif not path.endswith((".config", ".identity.settings")):  # these name the folder and the seed
        assert a == b, path


if __name__ == "__main__":
    how, at, *sys.argv[1:] = sys.argv[1:]
    Interrupted.interrupt, Interrupted.at = INTERRUPTIONS[how], int(at)
    train_net.Trainer = Interrupted
    run_program(train_net.main, argument_parser().parse_args())
