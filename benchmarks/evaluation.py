"""
Compare the time per image of the semantic and panoptic evaluators with Detectron2's.

    python benchmarks/evaluation.py [--images 24] [--repeats 5]

Both packages evaluate the same predictions for synthetic images of 480 x 640 pixels, with COCO's
133 classes and 60 instances each. The time includes everything except the model: making the
evaluators, processing the images one by one, and the final ``evaluate()``. Detectron2's evaluators
are unchanged, except for the function that loads labels, because Detectron2's own function fails
with NumPy 2. panopticapi uses all cores. Detectron2's SemSegEvaluator also computes Boundary IoU.
"""

import argparse
import contextlib
import copy
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import PIL
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets.builtin_meta import COCO_CATEGORIES, _get_builtin_metadata
from detectron2.evaluation import COCOPanopticEvaluator, DatasetEvaluators
from detectron2.evaluation import SemSegEvaluator as Detectron2SemSegEvaluator
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png
from ocr_panoptic.formats.labels import read_true_labels, write_label_png
from ocr_panoptic.formats.segment_runs import segment_statistics

NAME = "evaluation_benchmark"
SIZE = HEIGHT, WIDTH = 480, 640
NUM_INSTANCES = 60
TARGET = 0.25


def draw_truth(rng: np.random.Generator) -> tuple[np.ndarray, list[dict]]:
    """Draw six stuff bands and 60 ellipses; return segment ids int32 [H, W] and segments_info."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    ids = np.zeros(SIZE, dtype=np.int32)
    new_ids = iter(rng.choice(256**3 - 1, 6 + NUM_INSTANCES, replace=False) + 1)
    categories = {
        isthing: [c["id"] for c in COCO_CATEGORIES if c["isthing"] == isthing] for isthing in (0, 1)
    }
    segments = []
    for band, category_id in enumerate(rng.choice(categories[0], 6, replace=False)):
        wave = 20 * np.sin(columns / 60 + band)
        id_ = int(next(new_ids))
        ids[rows + wave >= band * HEIGHT / 6 + 10] = id_
        segments.append({"id": id_, "category_id": int(category_id), "iscrowd": 0})
    for _ in range(NUM_INSTANCES):
        centre, axes = rng.uniform((0, 0), SIZE), rng.uniform(12, 60, 2)
        id_ = int(next(new_ids))
        inside = ((rows - centre[0]) / axes[0]) ** 2 + ((columns - centre[1]) / axes[1]) ** 2 < 1
        ids[inside] = id_
        category_id = int(rng.choice(categories[1]))
        segments.append(
            {"id": id_, "category_id": category_id, "iscrowd": int(rng.random() < 0.05)}
        )
    found = segment_statistics(ids)
    return ids, [{**s, **found[s["id"]]._asdict()} for s in segments if s["id"] in found]


def predict(rng: np.random.Generator, ids: np.ndarray, segments: list[dict], metadata) -> tuple:
    """Invent a prediction: the truth shifted by a few pixels, with one category in ten wrong."""
    table = np.zeros(256**3, dtype=np.int32)
    segments_info = []
    for number, segment in enumerate(segments, start=1):
        table[segment["id"]] = number
        isthing = segment["category_id"] in metadata.thing_dataset_id_to_contiguous_id
        kind = "thing" if isthing else "stuff"
        category_id = metadata.get(f"{kind}_dataset_id_to_contiguous_id")[segment["category_id"]]
        if rng.random() < 0.1:
            category_id = category_id % 50 + 1
        segments_info.append({"id": number, "category_id": category_id, "isthing": isthing})
    predicted = np.roll(table[ids], rng.integers(-6, 7, 2), axis=(0, 1))
    shown = set(np.unique(predicted).tolist())
    return torch.from_numpy(predicted), [s for s in segments_info if s["id"] in shown]


def make_data(folder: Path, num_images: int) -> tuple[list[dict], list[dict]]:
    """Write and register a synthetic data set; return the inputs and outputs of a made-up model."""
    rng = np.random.default_rng(0)
    metadata = MetadataCatalog.get(NAME)
    metadata.set(
        **_get_builtin_metadata("coco_panoptic_separated"),
        panoptic_root=str(folder / "panoptic"),
        panoptic_json=str(folder / "panoptic.json"),
        ignore_label=255,
    )
    coarse = torch.from_numpy(rng.standard_normal((4, 54, 30, 40)).astype(np.float32))
    scores = torch.nn.functional.interpolate(coarse, SIZE, mode="bilinear", align_corners=False)
    inputs, outputs, annotations = [], [], []
    for image_id in range(num_images):
        png = f"{image_id:012d}.png"
        ids, segments = draw_truth(rng)
        write_panoptic_png(folder / "panoptic" / png, ids)
        annotations.append({"image_id": image_id, "file_name": png, "segments_info": segments})
        sem_seg = folder / "sem_seg" / png
        write_label_png(sem_seg, true_labels(folder / "panoptic" / png, segments, metadata))
        record = {"file_name": f"{image_id:012d}.jpg", "image_id": image_id}
        inputs.append({**record, "sem_seg_file_name": str(sem_seg)})
        panoptic = predict(rng, ids, segments, metadata)
        outputs.append({"panoptic_seg": panoptic, "sem_seg": scores[image_id % len(scores)]})
    truth = {"categories": COCO_CATEGORIES, "annotations": annotations}
    (folder / "panoptic.json").write_text(json.dumps(truth))
    DatasetCatalog.register(NAME, lambda: inputs)
    return inputs, outputs


def true_labels(png: Path, segments: list[dict], metadata) -> np.ndarray:
    """Return the labels that Detectron2's ``prepare_panoptic_fpn.py`` writes, uint8 [H, W]."""
    stuff = metadata.stuff_dataset_id_to_contiguous_id
    things = metadata.thing_dataset_id_to_contiguous_id
    infos = [
        {
            "id": segment["id"],
            "isthing": segment["category_id"] in things,
            "category_id": stuff.get(segment["category_id"]),
        }
        for segment in segments
    ]
    return read_true_labels({"pan_seg_file_name": png, "segments_info": infos})


def load_labels(path: str, dtype: type) -> np.ndarray:
    return np.array(Image.open(path), dtype=dtype)


def ours() -> DatasetEvaluators:
    return DatasetEvaluators([SemSegEvaluator(NAME), PanopticEvaluator(NAME)])


def detectron2s() -> DatasetEvaluators:
    sem_seg = Detectron2SemSegEvaluator(NAME, sem_seg_loading_fn=load_labels)
    return DatasetEvaluators([sem_seg, COCOPanopticEvaluator(NAME)])


def run(make_evaluators, inputs: list[dict], outputs: list[dict]) -> tuple[float, dict]:
    """Run the evaluators; return the seconds per image, and the results."""
    # Detectron2's evaluator changes segments_info.
    outputs = [
        {**output, "panoptic_seg": copy.deepcopy(output["panoptic_seg"])} for output in outputs
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        evaluators = make_evaluators()
        evaluators.reset()
        for input_, output in zip(inputs, outputs, strict=True):
            evaluators.process([input_], [output])
        results = evaluators.evaluate()
        seconds = time.perf_counter() - start
    return seconds / len(inputs), results


def compare(our_results: dict, their_results: dict) -> int:
    """
    Return the number of compared metrics; raise AssertionError if any differ beyond rounding.

    Rounding differs because panopticapi first adds up the IoUs within each of its processes.
    """
    compared = 0
    for task, metrics in their_results.items():
        for metric, value in metrics.items():
            if "Boundary" in metric or metric.startswith("min("):
                continue  # this package defines Boundary IoU differently
            np.testing.assert_allclose(
                our_results[task][metric], value, rtol=1e-12, err_msg=f"{task}/{metric}"
            )
            compared += 1
    return compared


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    print(
        f"{os.cpu_count()} CPU cores ({platform.machine()}), {torch.get_num_threads()} torch "
        f"threads; Python {platform.python_version()}, torch {torch.__version__}, "
        f"NumPy {np.__version__}, Pillow {PIL.__version__}"
    )
    print(f"{args.images} images of {HEIGHT} x {WIDTH}, 133 classes, {NUM_INSTANCES} instances")
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = make_data(Path(folder), args.images)
        compared = compare(run(ours, inputs, outputs)[1], run(detectron2s, inputs, outputs)[1])
        print(f"{compared} metrics equal")
        pairs = [
            [run(make, inputs, outputs)[0] for make in (ours, detectron2s)]
            for _ in range(args.repeats)
        ]
    for name, times in zip(("ours", "Detectron2"), zip(*pairs, strict=True), strict=True):
        print(f"{name:10} {1000 * statistics.median(times):7.1f} ms per image")
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"ratio      {ratio:7.3f} (target: at most {TARGET}; medians of {args.repeats} runs)")


if __name__ == "__main__":
    main()
