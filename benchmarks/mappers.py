"""
Compare data set mappers with Detectron2's: time per image, and memory of the masks.

    python benchmarks/mappers.py FOLDER [--repeats 30]

FOLDER is panopticapi's ``sample_data``: two COCO images with their panoptic PNGs and JSON. This
package's mapper reads them like a user's own data (masks from the panoptic PNG) and like COCO
(masks from polygons, labels from the panoptic PNG). Detectron2's mapper reads the polygons and a
semantic PNG. The polygons are traced around the segments.

For the Cityscapes recipe, crops are read from a PNG of 2048 x 1024 pixels: an enlarged image with
noise. The memory is measured for the masks of 25 objects, cropped to 128 boxes.
"""

import argparse
import copy
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import cv2
import numpy as np
import torch
from detectron2.data import DatasetMapper
from detectron2.data import transforms as T
from detectron2.structures import BitMasks, BoxMode
from PIL import Image
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.config.files import load_config
from ocr_panoptic.data.panoptic.mapper import PanopticDatasetMapper
from ocr_panoptic.data.panoptic.segment_masks import SegmentMasks
from ocr_panoptic.data.semantic import augmentation
from ocr_panoptic.data.semantic.mapper import SemanticDatasetMapper
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.predict.run_info import machine_name
from ocr_panoptic.program import run_program
from studies.measurement import cpu_seconds, medians
from studies.training_memory import AllocatedBytes

CONFIG = "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x"
CITYSCAPES = "Cityscapes-SemanticSegmentation/ocr_R_101_d8_40k_bs8"


def records(sample: Path, folder: Path) -> Iterator[tuple[dict, dict, dict]]:
    """Yield each image's record in three forms: a user's own data, COCO, and Detectron2's."""
    content = json.loads((sample / "panoptic_examples.json").read_text())
    kinds = {c["id"]: c["isthing"] for c in content["categories"]}
    label_of = {c: i for k in (0, 1) for i, c in enumerate(c for c in kinds if kinds[c] == k)}
    for entry in content["annotations"]:
        png = sample / "panoptic_examples" / entry["file_name"]
        ids = read_panoptic_png(png)
        semantic = np.full(ids.shape, 255, np.uint8)
        segments, polygons = [], []
        for segment in entry["segments_info"]:
            isthing = kinds[segment["category_id"]]
            label = label_of[segment["category_id"]] + (0 if isthing else 1)
            mask = (ids == segment["id"]).astype(np.uint8)
            semantic[mask > 0] = 0 if isthing else label
            segments.append({**segment, "category_id": label, "isthing": bool(isthing)})
            if isthing:
                outlines, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
                shape = [o.reshape(-1).astype(float).tolist() for o in outlines if len(o) > 2]
                box = {"bbox": cv2.boundingRect(mask), "bbox_mode": BoxMode.XYWH_ABS}
                polygons.append({**box, "category_id": label, "iscrowd": 0, "segmentation": shape})
        Image.fromarray(semantic).save(folder / png.name)
        image = sample / "input_images" / png.with_suffix(".jpg").name
        base = {"file_name": str(image), "height": ids.shape[0], "width": ids.shape[1]}
        own = [
            {"category_id": s["category_id"], "iscrowd": s["iscrowd"], "segment_id": s["id"]}
            for s in segments
            if s["isthing"]
        ]
        pan = {**base, "pan_seg_file_name": str(png), "segments_info": segments}
        theirs = {**base, "sem_seg_file_name": str(folder / png.name), "annotations": polygons}
        yield {**pan, "annotations": own}, {**pan, "annotations": polygons}, theirs


def panoptic_mappers(sample: Path, repeats: int) -> list[list[str]]:
    cfg = load_config(CONFIG, ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", "54"])
    ours, theirs = PanopticDatasetMapper(cfg, True), DatasetMapper(cfg, True)
    with tempfile.TemporaryDirectory() as folder:
        data = list(zip(*records(sample, Path(folder)), strict=True))
        kinds = {
            "own data": (ours, data[0]),
            "COCO": (ours, data[1]),
            "Detectron2's": (theirs, data[2]),
        }
        return timed(kinds, repeats)


def crops(sample: Path, repeats: int) -> list[list[str]]:
    cfg = load_config(CITYSCAPES, ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", "19"])
    ours = SemanticDatasetMapper(cfg, True)
    with patch.object(augmentation, "ResizedCrop", lambda *parts: T.AugmentationList(parts)):
        whole = SemanticDatasetMapper(cfg, True)
    with tempfile.TemporaryDirectory() as folder:
        image, labels = (f"{folder}/{name}.png" for name in ("image", "labels"))
        rng = np.random.default_rng(0)
        with Image.open(next(sample.glob("input_images/*.jpg"))) as small:
            pixels = np.asarray(small.convert("RGB").resize((2048, 1024), Image.Resampling.BICUBIC))
        noisy = pixels + rng.normal(0, 4, pixels.shape)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(image)
        Image.fromarray(rng.integers(0, 19, (32, 64), np.uint8).repeat(32, 0).repeat(32, 1)).save(
            labels
        )
        record = {"file_name": image, "sem_seg_file_name": labels}
        size = f"a PNG of {Path(image).stat().st_size / 2**20:.1f} MiB"
        kinds = {
            f"crop of 769 x 769 out of {size}": (ours, [record]),
            "the same out of the whole image, resized": (whole, [record]),
            "decoding the PNG alone": (lambda r: read_picture(r["file_name"]), [record]),
        }
        return timed(kinds, repeats)


def timed(
    kinds: dict[str, tuple[Callable[[dict], object], list[dict]]], repeats: int
) -> list[list[str]]:
    """Time the mappers in turn; return a row for each: name, and median CPU time per image (ms)."""
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for k in range(repeats):
        for kind, (mapper, images) in kinds.items():
            for record in copy.deepcopy(images):
                np.random.seed(k)  # noqa: NPY002, Detectron2's augmentations draw from it
                times[kind].append(cpu_seconds(lambda r=record, m=mapper: m(r)))
    return [[kind, f"{1e3 * statistics.median(values):.1f}"] for kind, values in times.items()]


def masks() -> Iterator[list[str]]:
    places = torch.arange(800 * 1333).reshape(800, 1333) // 100 % 60
    segments, corners = torch.arange(1, 26), torch.rand(128, 2) * 300
    boxes = torch.cat([corners, corners + 30 + torch.rand(128, 2) * 200], dim=1)
    sampled = torch.arange(128) % 25
    for name, one in (
        ("BitMasks", BitMasks(places == segments[:, None, None])),
        ("SegmentMasks", SegmentMasks(places.byte(), segments.byte())),
    ):
        kept = one.tensor.nbytes if name == "BitMasks" else one.places.nbytes

        def step(masks=one):
            return masks[sampled].crop_and_resize(boxes, 28)

        with AllocatedBytes() as allocated:
            step()
        (time,) = medians([step], 5)
        yield [name, f"{kept / 2**20:.0f}", f"{allocated.peak / 2**20:.0f}", f"{1e3 * time:.0f}"]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("sample", type=Path, metavar="FOLDER")
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    print(f"{machine_name('cpu')}, torch {torch.__version__}\n")
    headers = ["mapper", "CPU ms an image"]
    rows = panoptic_mappers(args.sample, args.repeats) + crops(args.sample, args.repeats)
    print(tabulate(rows, headers, "github", disable_numparse=True))
    headers = ["masks of an image", "kept (MiB)", "crops' highest point (MiB)", "CPU ms"]
    print(f"\n{tabulate([*masks()], headers, 'github', disable_numparse=True)}")


if __name__ == "__main__":
    run_program(main)
