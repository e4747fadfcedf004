"""
Measure what a training step on a GPU costs the CPU: operations, copies, waits and time.

    python benchmarks/training_step.py [--processes 8]

No GPU is needed. A complete step (forward and backward pass, optimizer, logging, hooks) of two
small images runs on a CPU with plain batch norms. Operations that would wait for values from a GPU
(``.item()``, boolean masks, ``nonzero``) are counted separately for each calling package. All
operations are counted, too; on a GPU, each would launch at least one kernel. The CPU time includes
the arithmetic that a GPU would do. Copies to a GPU are counted in a separate forward pass on
tensors without values, at the image sizes of the recipes and with batch norms synchronised over
--processes processes.

Detectron2's Panoptic-FPN in Detectron2's trainer is measured for comparison. The last lines give
the time that Detectron2's and this package's trainer need, with all hooks, for a model that does
nothing.
"""

import argparse
import collections
import contextlib
import itertools
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, HookBase
from detectron2.modeling import build_model
from detectron2.structures import BitMasks, Boxes, Instances
from detectron2.utils.events import EventStorage
from tabulate import tabulate
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.config.files import load_config
from ocr_panoptic.layers import bands
from ocr_panoptic.predict.run_info import machine_name
from train_net import Trainer

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
PROCESSES = 8
CITY = ("MODEL.SEM_SEG_HEAD.NUM_CLASSES", 19)
SEMANTIC = {  # title -> config, size of the crops
    "HRNet-W48 + OCR": ("Cityscapes-SemanticSegmentation/ocr_HRNet_W48_s4_40k_bs8", (769, 769)),
    "R-101 + OCR": ("Cityscapes-SemanticSegmentation/ocr_R_101_d8_40k_bs8", (769, 769)),
    "HRNet-W48, HMSA": ("HMSA/hmsa_HRNet_W48_cityscapes_65k_bs8", (1024, 2048)),
}
PANOPTIC = {
    "Panoptic-FPN R-50": "COCO-PanopticSegmentation/panoptic_fpn_R_50_3x",
    "Panoptic-FPN R-50 + OCR": "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x",
}
COCO = ("MODEL.SEM_SEG_HEAD.NUM_CLASSES", 54, "MODEL.ROI_HEADS.NUM_CLASSES", 80)
DETECTRON2 = (
    *("MODEL.META_ARCHITECTURE", "PanopticFPN", "MODEL.ROI_HEADS.NAME", "StandardROIHeads"),
    *("MODEL.ROI_MASK_HEAD.NAME", "MaskRCNNConvUpsampleHead"),
)
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique")
INDEXING = ("index", "index_put", "index_put_")  # they wait only if an index is a boolean mask
# Operations without a kernel, besides views: allocations, and queries of a fake tensor.
IDLE = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "device")
IDLE += ("_unsafe_view",)


class Counted(TorchDispatchMode):
    """
    A PyTorch dispatch mode that counts operations, copies, and operations that wait for a GPU.

    Args:
        device: type of the device whose operations are counted.

    Attributes:
        counts: numbers of "operations", "blocking copies", "other copies" and, for each calling
            package, "waits, PACKAGE".
        copied: bytes copied between devices.
    """

    def __init__(self, device: str):
        super().__init__()
        self.device = device
        self.counts: collections.Counter[str] = collections.Counter()
        self.copied = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        masks = [i for i in args[1] if i is not None] if name in INDEXING else []
        if name in WAITS or any(isinstance(i, Tensor) and i.dtype == torch.bool for i in masks):
            self.counts[f"waits, {_package()}"] += 1
        tensors = [t for t in tree_leaves((args, found)) if isinstance(t, Tensor)]
        if len({t.device.type for t in tensors}) > 1 and "copy" in name:
            waits = not (kwargs or {}).get("non_blocking", name == "copy_" and args[-1] is True)
            self.counts["blocking copies" if waits else "other copies"] += 1
            self.copied += tensors[0].nbytes
        aliases = [part.alias_info for part in function._schema.returns]
        is_view = any(alias and not alias.is_write for alias in aliases)
        is_here = any(t.device.type == self.device for t in tensors)
        if is_here and not is_view and name not in IDLE:
            self.counts["operations"] += 1
        return found


def _package() -> str:
    """Return the package that called the operation, or "backward" in the backward pass."""
    frame = sys._getframe(2)
    while frame := frame.f_back:
        if frame.f_code.co_name == "_engine_run_backward":
            return "backward"
        for name in ("ocr_panoptic", "detectron2"):
            file = frame.f_code.co_filename
            if f"/{name}" in file and "/benchmarks/" not in file:
                return name
    return "backward"


def load(name: str, *opts: object) -> CfgNode:
    return load_config(str(CONFIGS / f"{name}.yaml"), [*map(str, opts)])


def forward_on_a_gpu(config: str, opts: tuple, examples: list[dict], ours: bool) -> Counted:
    """
    Count the operations and copies of a training forward pass on a simulated GPU.

    In a panoptic model, the count stops when the CPU first waits for a value from the GPU; all
    copies are done by then.
    """
    build_model(
        load(config, *opts, "MODEL.DEVICE", "cpu")
    )  # for the setup that timm does only once
    cfg, counted = load(config, *opts, "MODEL.DEVICE", "cuda"), Counted("cuda")
    if ours:  # as in training: no copy makes the CPU wait
        copied = partial(Tensor.to, device=torch.device("cuda"), non_blocking=True)
    env = ShapeEnv(allow_dynamic_output_shape_ops=True, allow_scalar_outputs=True)
    with FakeTensorMode(shape_env=env, allow_non_fake_inputs=True):
        with torch.device("cuda"), patch.object(nn.Module, "to", lambda model, *_: model):
            model = build_model(cfg).train()
        with kernels_of_synchronised_norms(counted), counted, EventStorage():
            try:
                model([tree_map_only(Tensor, copied, e) if ours else e for e in examples])
            except Exception:
                if not hasattr(model, "roi_heads"):
                    raise
    return counted


def kernels_of_synchronised_norms(counted: Counted) -> contextlib.AbstractContextManager:
    """
    Return a context manager that counts calls of SyncBN's GPU kernels instead of running them.

    Each call counts as one operation.
    """

    def statistics_of(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        counted.counts["operations"] += 1
        return tuple(x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(2))

    def map_like(x: Tensor, *_: object) -> Tensor:
        counted.counts["operations"] += 1
        return torch.empty_like(x)

    return patch.multiple(
        torch,
        batch_norm_stats=statistics_of,
        batch_norm_gather_stats_with_counts=statistics_of,
        batch_norm_elemt=map_like,
    )


def example(size: tuple[int, int], classes: int, things: int) -> dict:
    """Return a training example: an image, its labels, and ``things`` box-shaped instances."""
    height, width = size
    found = {
        "file_name": "0.jpg",
        "image": torch.randint(256, (3, *size), dtype=torch.uint8),
        "sem_seg": torch.randint(classes, size),
    }
    if things:
        found["instances"] = instances = Instances(size)
        box = torch.tensor([width / 8, height / 8, width / 2, height / 2])
        instances.gt_boxes = Boxes(box + 3 * torch.arange(things)[:, None])
        instances.gt_classes = torch.arange(things)
        masks = torch.zeros(things, *size, dtype=torch.bool)
        masks[:, height // 8 : height // 2, width // 8 : width // 2] = True
        instances.gt_masks = BitMasks(masks)
    return found


class Counting(HookBase):
    """A hook that counts the operations of one iteration, and times later iterations."""

    def __init__(self, counted: Counted):
        self.counted, self.times = counted, []

    def before_step(self) -> None:
        if self.trainer.iter == 2:  # the first iterations have done all one-time setup
            self.counted.__enter__()
        self._start = time.process_time()

    def after_step(self) -> None:
        if self.trainer.iter == 2:
            self.counted.__exit__(None, None, None)
        elif self.trainer.iter > 2:
            self.times.append(time.process_time() - self._start)


def step_of_training(
    config: str, opts: tuple, examples: list[dict], ours: bool
) -> tuple[Counted, float]:
    """Return the operation counts and the CPU time (ms) of a training step on a CPU."""

    class Fed(Trainer if ours else DefaultTrainer):
        @classmethod
        def build_train_loader(cls, cfg: CfgNode) -> itertools.repeat:
            return itertools.repeat(examples)

    torch.manual_seed(0)
    hook = Counting(Counted("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        opts += ("SOLVER.MAX_ITER", 8, "SOLVER.CHECKPOINT_PERIOD", 10**6, "OUTPUT_DIR", folder)
        opts += ("TEST.EVAL_PERIOD", 0, "DATASETS.TEST", (), "MODEL.DEVICE", "cpu", "SEED", 1)
        opts += ("MODEL.WEIGHTS", "", "MODEL.OCR.NORM", "BN", "SOLVER.BASE_LR", 0.0)  # stays finite
        cfg = load(config, *opts)
        cfg.MODEL.TIMM.NORM = "BN"
        trainer = Fed(cfg)
        trainer.register_hooks([hook])
        DefaultTrainer.train(trainer)
    return hook.counted, 1e3 * statistics.median(hook.times)


def steps() -> Iterator[tuple[str, Counted, Counted, float]]:
    """
    Yield each network's title, its operation counts on a CPU and on a GPU, and its CPU time.

    The CPU counts and the time, in milliseconds, are for a training step. The GPU counts are for a
    forward pass on a simulated GPU.
    """
    for title, (config, size) in SEMANTIC.items():
        small = example((128, 128), 19, 0), example((128, 128), 19, 0)
        large = [example(size, 19, 0)] * 2
        yield title, *measured(config, CITY, [*small], large, True)
    for title, config in PANOPTIC.items():
        small, large = ([example(size, 54, 5)] * 2 for size in ((96, 128), (800, 1216)))
        if "OCR" not in title:
            yield (
                f"{title}, all Detectron2's",
                *measured(config, (*COCO, *DETECTRON2), small, large, False),
            )
        yield title, *measured(config, COCO, small, large, True)


def measured(
    config: str, opts: tuple, small: list[dict], large: list[dict], ours: bool
) -> tuple[Counted, Counted, float]:
    counted, milliseconds = step_of_training(config, opts, small, ours)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=PROCESSES)
    forward = forward_on_a_gpu(config, opts, large, ours)
    dist.destroy_process_group()
    return counted, forward, milliseconds


class Nothing(nn.Module):
    """A model that does nothing: its six losses are the elements of its only parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, batch: list) -> dict[str, Tensor]:
        return {f"loss_{i}": loss for i, loss in enumerate(self.weight.unbind())}


class Clock(HookBase):
    def __init__(self):
        self.times: list[float] = []

    def after_step(self) -> None:
        self.times.append(time.process_time())


def milliseconds_of_training(base: type[DefaultTrainer]) -> float:
    """
    Return a trainer's CPU time in ms per iteration, with all hooks and a model that does nothing.

    The result is the 10th percentile, because other programs disturb fast iterations least.
    """

    class Idle(base):
        @classmethod
        def build_model(cls, cfg: CfgNode) -> nn.Module:
            return Nothing()

        @classmethod
        def build_optimizer(cls, cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), 0.0)

        @classmethod
        def build_train_loader(cls, cfg: CfgNode) -> itertools.repeat:
            return itertools.repeat([{"file_name": "0.jpg"}] * 2)

    with tempfile.TemporaryDirectory() as folder:
        opts = ("SOLVER.MAX_ITER", 500, "SOLVER.CHECKPOINT_PERIOD", 10**6, "OUTPUT_DIR", folder)
        opts += ("TEST.EVAL_PERIOD", 0, "DATASETS.TEST", (), "MODEL.DEVICE", "cpu", "SEED", 1)
        config = next(iter(PANOPTIC.values()))
        trainer, clock = Idle(load(config, *opts)), Clock()
        trainer.register_hooks([clock])
        DefaultTrainer.train(trainer)
    times = [b - a for a, b in itertools.pairwise(clock.times)]
    return 1e3 * statistics.quantiles(times, n=10)[0]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--processes", type=int, default=8)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{machine_name('cpu')}, torch {torch.__version__}\n")

    logging.disable(logging.CRITICAL)
    bands.BAND_BYTES["cpu"] = bands.BAND_BYTES["cuda"]  # as many kernels as on a GPU
    global PROCESSES
    PROCESSES = args.processes
    rows = []
    for title, whole, forward, milliseconds in steps():
        waits = [whole.counts[f"waits, {p}"] for p in ("ocr_panoptic", "detectron2", "backward")]
        copies = [forward.counts[f"{kind} copies"] for kind in ("blocking", "other")]
        copied = f"{forward.copied / 2**20:.1f}"
        milliseconds = f"{milliseconds:.0f}"
        rows.append([title, *waits, whole.counts["operations"], milliseconds, *copies, copied])
    heads = ["waits: ours", "Detectron2's", "backward", "operations", "CPU ms"]
    heads += ["blocking copies", "others", "MiB"]
    print(tabulate(rows, ["a step of 2 images", *heads], "github"), "\n")

    bases = DefaultTrainer, Trainer
    times = [[milliseconds_of_training(base) for base in bases] for _ in range(6)]
    theirs, ours = (min(column) for column in zip(*times))
    ratio = statistics.median(b / a for a, b in times)
    print(f"a model that does nothing: {theirs:.3f} ms an iteration in Detectron2's trainer,")
    print(f"{ours:.3f} ms in ours, in turn; median of the ratios {ratio:.2f}")


if __name__ == "__main__":
    main()
