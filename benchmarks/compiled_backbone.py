"""
Compare a backbone's forward and backward pass with and without torch.compile, on a CPU.

    python benchmarks/compiled_backbone.py [--config-file CONFIG] [--size 128 256] [--repeats 5]

The batch has two images. The gradients of both variants are compared with a float64 reference.
torch.compile needs a C++ compiler.
"""

import argparse
import copy
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.engine import load_config, run_program
from ocr_panoptic.engine.run_info import machine_name
from ocr_panoptic.modeling import build_model

CONFIG = "Cityscapes-SemanticSegmentation/ocr_R_101_d8_40k_bs8"


def gradients(backbone: nn.Module, forward: nn.Module, image: Tensor) -> Tensor:
    backbone.zero_grad()
    sum((features**2).mean() for features in forward(image).values()).backward()
    return torch.cat([p.grad.flatten() for p in backbone.parameters() if p.grad is not None])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--config-file", default=CONFIG)
    parser.add_argument("--size", type=int, nargs=2, default=[128, 256])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    opts = ["MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", "", "MODEL.SEM_SEG_HEAD.NUM_CLASSES", "19"]
    torch.manual_seed(0)
    backbone = build_model(load_config(args.config_file, opts)).train().backbone
    image, start = torch.randn(2, 3, *args.size), copy.deepcopy(backbone.state_dict())
    double = copy.deepcopy(backbone).double()
    exact = gradients(double, double, image.double())
    compiled = torch.compile(backbone)
    times: dict[str, list[float]] = {"as it is": [], "compiled": []}
    for name, forward in (("as it is", backbone), ("compiled", compiled)):
        backbone.load_state_dict(start)
        began = time.process_time()
        distance = (gradients(backbone, forward, image).double() - exact).norm() / exact.norm()
        first = time.process_time() - began
        print(f"{name}: first pass {first:.1f} CPU s, gradient {distance:.1%} from float64's")
    for _ in range(args.repeats):
        for name, forward in (("as it is", backbone), ("compiled", compiled)):
            began = time.process_time()
            gradients(backbone, forward, image)
            times[name].append(time.process_time() - began)
    plain, faster = (statistics.median(times[name]) for name in ("as it is", "compiled"))
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    print(f"{machine_name('cpu')}, torch {torch.__version__}: {plain:.2f} and {faster:.2f} CPU s, ")
    print(f"ratio {faster / plain:.2f}; breaks of the graph: {breaks}")


if __name__ == "__main__":
    run_program(main)
