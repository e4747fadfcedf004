"""Small trainings that are killed and resumed, and how what they leave is compared."""

from pathlib import Path

import torch

from ocr_panoptic.engine import Trainer, setup
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG, TINY_SEMANTIC

CONFIGS = {"panoptic": OCR_CONFIG, "semantic": SEMANTIC_CONFIG}
# What makes a resumed run differ from the whole one if anything does.
HARD = {
    "panoptic": ["DATALOADER.NUM_WORKERS", 0, "DATALOADER.ASPECT_RATIO_GROUPING", True],
    "semantic": [*TINY_SEMANTIC, "DATALOADER.NUM_WORKERS", 2, "SOLVER.ACCUMULATION_STEPS", 2],
}


class Killed(BaseException):
    """Ends a training as no handler of errors sees it."""


class DyingTrainer(Trainer):
    """Is killed at the start of an iteration."""

    death = -1

    def run_step(self):
        if self.iter == self.death:
            raise Killed
        super().run_step()


def train(make_args, kind: str, folder: Path, *opts: object, death: int = -1, resume=False):
    """
    Returns:
        the trainer after it has ended
    """
    opts = ["SOLVER.MAX_ITER", 5, "SOLVER.STEPS", "(4,)", "OUTPUT_DIR", folder, *opts]
    opts += ["MODEL.OCR.DROPOUT", 0.5, "SOLVER.CHECKPOINT_PERIOD", 2, "TEST.EVAL_PERIOD", 0]
    args = make_args(*HARD[kind], "DATASETS.TEST", "()", *opts, config=CONFIGS[kind])
    trainer = DyingTrainer(*setup(args))
    trainer.resume_or_load(resume)
    trainer.death = death
    try:
        trainer.train()
    except Killed:
        assert death >= 0
    return trainer


def saved(folder: Path, name: str = "model_final") -> dict:
    return torch.load(folder / f"{name}.pth", weights_only=True)


def assert_same(a, b, path: str = "") -> None:
    """Check that two runs are equal to the last bit."""
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
    elif not (path.endswith(".config")):
        assert a == b, path
