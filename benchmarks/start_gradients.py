"""
Measure the gradients that the losses cause in the backbone before the first iteration.

    python benchmarks/start_gradients.py --config-file CONFIG [--also "KEY VALUE"] [KEY VALUE ...]

The first row is for the config with the KEY VALUE pairs at the end of the command. Each --also adds
a row for this config with further pairs.

"detection" is the gradient norm of all losses of the RPN and the ROI heads; "semantic" is the
gradient norm of all other losses. Both norms cover the parameters of the backbone and its FPN.
"above" is the number of parameter tensors (of the whole model) whose gradient norm exceeds
SOLVER.CLIP_GRADIENTS.CLIP_VALUE. All values are means over three seeds, each with its own batch.
"""

import argparse
import shlex
import statistics
import sys
from pathlib import Path

import torch
from detectron2.config import CfgNode
from detectron2.modeling import build_model
from detectron2.utils.events import EventStorage
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.checkpoint import SafeCheckpointer
from ocr_panoptic.config.files import load_config
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.program import run_program
from train_net import Trainer

COLUMNS = ["detection", "semantic", "ratio", "initial loss", "above", "tensors"]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--config-file", required=True)
    parser.add_argument("--also", action="append", default=[], help="a row with these keys, too")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="config keys and values")
    args = parser.parse_args(argv)
    rows = []
    for also in ["", *args.also]:
        cfg = load_config(args.config_file, [*args.opts, *shlex.split(also)])
        complete_config(cfg, training=True)
        measured = zip(*(gradients(cfg, seed) for seed in range(3)))
        rows.append([also or "as it is", *map(statistics.mean, measured)])
    print(tabulate(rows, headers=["keys", *COLUMNS], floatfmt=".3g", tablefmt="github"))


def gradients(cfg: CfgNode, seed: int) -> list[float]:
    """Return the values measured with one seed, in the order of ``COLUMNS``."""
    cfg.SEED = seed
    torch.manual_seed(seed)
    model = build_model(cfg).train()
    SafeCheckpointer(model).load(cfg.MODEL.WEIGHTS, checkpointables=[])
    batch = next(iter(Trainer.build_train_loader(cfg)))
    with EventStorage():
        losses = model(batch)
    none = torch.zeros((), requires_grad=True)
    semantic = sum(loss for name, loss in losses.items() if name.startswith("loss_sem_seg"))
    detection = sum((x for name, x in losses.items() if not name.startswith("loss_sem_seg")), none)
    norms = []
    for loss in (detection, semantic):
        model.zero_grad()
        loss.backward(retain_graph=True)
        trunk = [p.grad for p in model.backbone.parameters() if p.grad is not None]
        norms.append(torch.nn.utils.get_total_norm(trunk).item())
    model.zero_grad()
    (detection + semantic).backward()
    lengths = [p.grad.norm().item() for p in model.parameters() if p.grad is not None]
    above = sum(length > cfg.SOLVER.CLIP_GRADIENTS.CLIP_VALUE for length in lengths)
    total = (detection + semantic).item()
    ratio = norms[1] / norms[0] if norms[0] else float("nan")
    return [*norms, ratio, total, above, len(lengths)]


if __name__ == "__main__":
    run_program(main)
