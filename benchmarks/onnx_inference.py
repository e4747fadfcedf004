"""
Compare the time and memory of exported models with the deployed PyTorch models, on a CPU.

    python benchmarks/onnx_inference.py [--models NAME ...] [--size 512 1024] [--threads 2]

``onnx_parity.py`` defines the models and compares their results. Each time is the median CPU time
over several runs, which other programs hardly affect. The exported model and the PyTorch model run
alternately in one process. Memory is the peak of a model's first run, in addition to the memory
that the process uses after loading the model; each model gets its own process (Linux only).
"""

import argparse
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import torch
from detectron2.config import CfgNode
from detectron2.data import transforms as T
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from onnx_parity import NETWORKS, export, fitted_model, load

from ocr_panoptic.modeling import InferenceModel, deploy
from ocr_panoptic.predict.run_info import machine_name
from ocr_panoptic.program import run_program
from ocr_panoptic.workbench.exporting.parity import sample_image
from ocr_panoptic.workbench.exporting.run_onnx import Model
from studies.measurement import medians

OWN_SIZE = T.ResizeShortestEdge(0)
"""Both models get the image without resizing."""

ADE20K = "ADE20K-SemanticSegmentation/ocr_R_101_d8_150k_bs16.yaml"

# Name -> (config, KEY VALUE ...)
MODELS: dict[str, tuple[str, tuple]] = {
    **{f"{name} + OCR": network for name, network in NETWORKS.items()},
    "semantic R-50 + OCR, K = 150": (ADE20K, NETWORKS["semantic R-50"][1]),
}


def settings(name: str) -> CfgNode:
    return load(*MODELS[name])


def runs(name: str, path: Path, size: tuple[int, int], threads: int) -> dict:
    """Return functions that run a model on a sample image, by name: "PyTorch" and "onnxruntime"."""
    torch.set_num_threads(threads)
    model = deploy(fitted_model(settings(name)))
    image = sample_image(size, seed=0)
    inputs = [{"image": torch.as_tensor(image.transpose(2, 0, 1).copy())}]
    exported = Model(path, threads=threads)
    return {
        "PyTorch": torch.inference_mode()(lambda: predict(model, inputs)),
        "onnxruntime": lambda: exported(image),
    }


def predict(model: InferenceModel, inputs: list[dict]) -> None:
    """Compute what the exported model computes: labels, confidences and any panoptic map."""
    (output,) = model(inputs)
    for part in ("confidence", "panoptic_seg"):
        output.get(part)


def peak(name: str, path: Path, size: tuple[int, int], threads: int, way: str) -> float:
    """Return the peak memory that a run adds, in MiB; ``way`` is "PyTorch" or "onnxruntime"."""
    run = runs(name, path, size, threads)[way]
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current memory
    run()
    return resident("VmHWM") - before


def resident(what: str) -> float:
    """Return this process's resident memory in MiB: current ("VmRSS") or peak ("VmHWM")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def costs(name: str, path: Path, size: tuple[int, int], threads: int, repeats: int) -> list:
    """Return a table row: name, then seconds and peak memory (MiB) of PyTorch and onnxruntime."""
    ways = runs(name, path, size, threads)
    for run in ways.values():  # to warm up
        run()
    plain, exported = medians([*ways.values()], repeats)
    memory = []
    for way in ways:
        with get_context("spawn").Pool(1) as pool:
            memory.append(pool.apply(peak, (name, path, size, threads, way)))
    return [name, plain, exported, exported / plain, *memory]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--size", type=int, nargs=2, default=[512, 1024])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    print(f"{machine_name('cpu')}, torch {torch.__version__}")
    table = []
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(args.models):
            path = Path(folder) / f"{number}.onnx"
            cfg = settings(name)
            export(cfg, fitted_model(cfg), path, OWN_SIZE)
            table.append(costs(name, path, tuple(args.size), args.threads, args.repeats))
            print(table[-1], flush=True)
            path.unlink()
    headers = ["model", "PyTorch s", "onnxruntime s", "ratio", "PyTorch MiB", "onnxruntime MiB"]
    print(tabulate(table, headers=headers, floatfmt=".2f", tablefmt="github"))


if __name__ == "__main__":
    run_program(main)
