"""What a training step asks of the CPU before a GPU: waits, copies, operations, milliseconds.

    python benchmarks/training_step.py [--processes 8] [--repeats 30]

No GPU is needed. The forward pass of the semantic models runs on tensors of a GPU that have shapes
only, at the size of the recipes, batch norms synchronised over --processes. What waits for values
(``.item()``, boolean masks, ``nonzero``) and what is copied is counted on its way to PyTorch.
Panoptic-FPN needs values and is counted on a CPU, at a small size; its waits are those of the
package whose code is the nearest. Host milliseconds are of networks with one value in each tensor,
and of a whole training, hooks and all, of a model that does nothing.
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
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, HookBase
from detectron2.structures import BitMasks, Boxes, Instances
from detectron2.utils.events import EventStorage
from tabulate import tabulate
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.engine import Trainer, load_config
from ocr_panoptic.engine.averaging import Averaging
from ocr_panoptic.engine.run_info import machine_name
from ocr_panoptic.layers import pixel_losses
from ocr_panoptic.modeling.confidence import confident_argmax
from ocr_panoptic.modeling.inference import resized_classes

try:
    from ocr_panoptic.data.training_stream import on_device, packed
    from ocr_panoptic.engine.optimizer import build_clipping
    from ocr_panoptic.modeling import build_model
except ImportError:  # of a former commit, to compare with
    from detectron2.modeling import build_model

    build_clipping = None

    def packed(example: dict) -> dict:
        return example

    def on_device(example: dict, _: torch.device) -> dict:
        return example


CONFIGS = Path(__file__).resolve().parents[1] / "configs"
CITY = ("MODEL.SEM_SEG_HEAD.NUM_CLASSES", 19)
SEMANTIC = {  # title -> config, size of the crops
    "HRNet-W48 + OCR": ("Cityscapes-SemanticSegmentation/ocr_HRNet_W48_s4_40k_bs8", (769, 769)),
    "R-101 + OCR": ("Cityscapes-SemanticSegmentation/ocr_R_101_d8_40k_bs8", (769, 769)),
    "HRNet-W48, HMSA": ("HMSA/hmsa_HRNet_W48_cityscapes_65k_bs8", (1024, 2048)),
}
PANOPTIC = {
    "Panoptic-FPN R-50, on a CPU": "COCO-PanopticSegmentation/panoptic_fpn_R_50_3x",
    "the same with OCR, on a CPU": "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x",
}
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique")
INDEXING = ("index", "index_put", "index_put_")  # with boolean masks
# What a kernel computes of no value: views, and memory that is asked for.
IDLE = ("view", "empty", "expand", "permute", "transpose", "slice", "select", "split", "unsqueeze")
IDLE += ("squeeze", "alias", "detach", "chunk", "unbind", "as_strided", "t", "lift_fresh", "new_")


class Counted(TorchDispatchMode):
    """Operations that a GPU would be given: ``counts`` by kind, ``copied`` bytes."""

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
        if not name.startswith(IDLE) and any(t.device.type == self.device for t in tensors):
            self.counts["operations"] += 1
        return found


def _package() -> str:
    frame = sys._getframe(2)
    while frame := frame.f_back:
        for name in ("ocr_panoptic", "detectron2"):
            file = frame.f_code.co_filename
            if f"/{name}" in file and "/benchmarks/" not in file:
                return name
    return "other"


def load(name: str, *opts: object) -> CfgNode:
    return load_config(str(CONFIGS / f"{name}.yaml"), [*map(str, opts)])


def forward_of_semantic_model(name: str, size: tuple[int, int]) -> Counted:
    """Two crops, as the training gets them for a GPU, in one of several processes."""
    build_model(load(name, *CITY, "MODEL.DEVICE", "cpu"))  # what is read of timm is found out once
    cfg, counted = load(name, *CITY, "MODEL.DEVICE", "cuda"), Counted("cuda")
    batch = [
        packed({"image": torch.zeros(3, *size).byte(), "sem_seg": torch.zeros(size).long()})
        for _ in range(2)
    ]
    env = ShapeEnv(allow_dynamic_output_shape_ops=True, allow_scalar_outputs=True)
    with FakeTensorMode(shape_env=env, allow_non_fake_inputs=True):
        with torch.device("cuda"), patch.object(nn.Module, "to", lambda model, *_: model):
            model = build_model(cfg).train()
        with kernels_of_synchronised_norms(counted), counted:
            model([on_device(example, torch.device("cuda")) for example in batch])
    return counted


def kernels_of_synchronised_norms(counted: Counted) -> contextlib.AbstractContextManager:
    """Stand-ins for those that PyTorch has for GPUs alone, each one operation."""

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


def step_of_panoptic_fpn(name: str) -> Counted:
    """The forward pass of two images with two things each, on a CPU."""
    opts = ("MODEL.SEM_SEG_HEAD.NUM_CLASSES", 54, "MODEL.ROI_HEADS.NUM_CLASSES", 80)
    norms = ("MODEL.OCR.NORM", "BN", "MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", "")
    torch.manual_seed(0)
    model, size = build_model(load(name, *opts, *norms)).train(), (160, 192)
    instances = Instances(size)
    instances.gt_boxes = Boxes([[20.0, 30, 90, 120], [60, 10, 150, 100]])
    instances.gt_classes = torch.tensor([1, 3])
    masks = torch.zeros(2, *size, dtype=torch.bool)
    masks[:, 30:100, 60:90] = True
    instances.gt_masks = BitMasks(masks)
    image = torch.randint(256, (3, *size), dtype=torch.uint8)
    labels = torch.randint(54, size)
    batch = [{"image": image, "sem_seg": labels, "instances": instances}] * 2
    counted = Counted("cpu")
    with EventStorage(), counted:
        model(batch)
    return counted


def operations_of_bands() -> list[tuple[str, int]]:
    """Of the loss of two images of COCO, and of its labels with their confidence, on a GPU."""
    found = []
    with FakeTensorMode():
        for classes in (19, 54, 150):
            scores = torch.empty(1, classes, 200, 304, device="cuda")
            with Counted("cuda") as counted:
                groups = resized_classes(scores, (480, 640), (800, 1200), (800, 1216))
                confident_argmax(groups)
            title = f"labels and confidence of an image, {classes} classes"
            found.append((title, counted.counts["operations"]))
        # The backward pass needs a GPU, if the tensors say that they are on one.
        logits = torch.empty(2, 54, 200, 336, requires_grad=True)
        labels = torch.zeros(2, 800, 1344, dtype=torch.long)
        gpus = pixel_losses.BAND_BYTES["cuda"]
        with patch.dict(pixel_losses.BAND_BYTES, cpu=gpus), Counted("cpu") as counted:
            pixel_losses.pixel_cross_entropy(logits, labels, 255).sum().backward()
    return [*found, ("the loss of two images, both passes", counted.counts["operations"])]


class Nothing(nn.Module):
    """A model of one parameter and six losses."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, batch: list) -> dict[str, Tensor]:
        return {f"loss_{i}": loss for i, loss in enumerate(self.weight.unbind())}


class Clock(HookBase):
    def __init__(self):
        self.times: list[float] = []

    def after_step(self) -> None:
        self.times.append(time.perf_counter())


def milliseconds_of_training(base: type[DefaultTrainer]) -> float:
    """Median of the iterations of a trainer, with its hooks, around :class:`Nothing`."""

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
    return 1e3 * statistics.median(b - a for a, b in itertools.pairwise(clock.times))


def host_steps(title: str) -> dict[str, Callable[[], object]]:
    """What to time of the network of SEMANTIC with one value in each tensor."""
    cfg = load(SEMANTIC[title][0], *CITY, "MODEL.DEVICE", "cpu", "MODEL.OCR.NORM", "BN")
    cfg.MODEL.TIMM.NORM = "BN"
    network = build_model(cfg)
    for tensor in (*network.parameters(), *network.buffers()):
        tensor.data = torch.ones_like(tensor.flatten()[0])
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    steps = {"the weights' average": Averaging(network, 0.999).after_step}
    for name in ("SGD", "AdamW"):
        cfg.SOLVER.OPTIMIZER = name
        steps[f"{name}'s step"] = Trainer.build_optimizer(cfg, network).step
    cfg.SOLVER.OPTIMIZER, cfg.SOLVER.CLIP_GRADIENTS.ENABLED = "SGD", True
    cfg.SOLVER.CLIP_GRADIENTS.CLIP_TYPE = "norm"
    optimizer = Trainer.build_optimizer(cfg, network)
    clip = build_clipping(cfg, optimizer) if build_clipping else lambda: None
    steps["SGD's step with clipping"] = lambda: (clip(), optimizer.step())
    return steps


def cpu_seconds(step: Callable[[], object]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{machine_name('cpu')}, torch {torch.__version__}\n")

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=args.processes)
    counted = {name: forward_of_semantic_model(*SEMANTIC[name]) for name in SEMANTIC}
    dist.destroy_process_group()
    counted |= {name: step_of_panoptic_fpn(config) for name, config in PANOPTIC.items()}
    kinds = sorted({kind for one in counted.values() for kind in one.counts})
    rows = [
        [name, *(one.counts[kind] for kind in kinds), f"{one.copied / 2**20:.1f}"]
        for name, one in counted.items()
    ]
    print(tabulate(rows, ["forward pass of 2 images", *kinds, "copied (MiB)"], "github"), "\n")

    print(tabulate(operations_of_bands(), ["on a GPU", "operations"], "github"), "\n")
    with EventStorage():
        steps = host_steps("HRNet-W48 + OCR")
        times = [[cpu_seconds(step) for step in steps.values()] for _ in range(args.repeats + 3)]
    medians = [1e3 * statistics.median(column) for column in zip(*times[3:])]
    rows = [[name, f"{median:.2f}"] for name, median in zip(steps, medians)]
    logging.disable(logging.CRITICAL)
    for title, base in (
        ("Detectron2's training of a model that does nothing", DefaultTrainer),
        ("ours", Trainer),
    ):
        best = min(milliseconds_of_training(base) for _ in range(3))
        rows.append([title, f"{best:.2f}"])
    print(tabulate(rows, ["HRNet-W48 + OCR, one value in each tensor", "host ms"], "github"))


if __name__ == "__main__":
    main()
