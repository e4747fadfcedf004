"""Write and register random panoptic data sets, for tests of evaluation."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image
from pycocotools import mask as mask_util

from ocr_panoptic.evaluation.segment_matching import SegmentOverlaps
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png


@dataclass
class Sample:
    """The true and predicted segments of an image, with the data set's own category ids."""

    image_id: int | str
    ids: np.ndarray
    segments: list[dict]
    predicted_ids: np.ndarray
    predicted_segments: list[dict]

    @property
    def png(self) -> str:
        return f"{self.image_id:0>6}.png"


def overlaps_of(sample: Sample) -> SegmentOverlaps:
    return SegmentOverlaps(
        sample.ids, sample.segments, sample.predicted_ids, sample.predicted_segments
    )


def make_categories(num_things: int, num_stuff: int) -> list[dict]:
    """Return COCO categories with gaps between ids; things and stuff alternate if possible."""
    shared = min(num_things, num_stuff)
    kinds = [1, 0] * shared + [1] * (num_things - shared) + [0] * (num_stuff - shared)
    return [
        {"id": id_, "name": f"{('stuff', 'thing')[isthing]}{id_}", "isthing": isthing}
        for id_, isthing in zip(range(2, 3 * len(kinds) + 2, 3), kinds, strict=True)
    ]


def random_samples(rng, num_images: int, categories: list[dict], size=(24, 32)) -> list[Sample]:
    """Return random samples: rectangular segments (some are crowds) and faulty predictions."""
    samples = []
    for image_id in range(10, 10 + num_images):
        truth = random_panoptic(rng, categories, size, num_segments=int(rng.integers(1, 12)))
        samples.append(Sample(image_id, *truth, *faulty_copy(rng, *truth, categories)))
    return samples


def random_panoptic(rng, categories, size, num_segments) -> tuple[np.ndarray, list[dict]]:
    ids = np.zeros(size, dtype=np.int32)
    new_ids = rng.choice(256**3 - 1, num_segments, replace=False) + 1
    for id_ in new_ids:
        (top, bottom), (left, right) = (np.sort(rng.integers(0, n + 1, 2)) for n in size)
        ids[top:bottom, left:right] = id_
    segments = []
    for id_ in rng.permutation(np.unique(ids[ids > 0])):
        category = categories[rng.integers(len(categories))]
        segments.append(
            {
                "id": int(id_),
                "category_id": category["id"],
                "iscrowd": int(category["isthing"] and rng.random() < 0.3),
                "area": int(np.sum(ids == id_)),
            }
        )
    return ids, segments


def faulty_copy(rng, ids, segments, categories) -> tuple[np.ndarray, list[dict]]:
    """Return a faulty prediction of true segments: moved, dropped, cut, mislabelled, invented."""
    predicted_ids = np.zeros_like(ids)
    predicted_segments = []
    moved = np.roll(ids, int(rng.integers(-3, 4)), axis=int(rng.integers(2)))
    for number, segment in enumerate(rng.permutation(segments), start=1):
        fate = rng.random()
        if fate < 0.1:
            continue
        mask = moved == segment["id"]
        if fate < 0.3:
            mask &= rng.random(ids.shape) < 0.6
        category_id = segment["category_id"]
        if fate > 0.85:
            category_id = categories[rng.integers(len(categories))]["id"]
        predicted_ids[mask] = number
        predicted_segments.append({"id": number, "category_id": category_id})
    invented = predicted_ids == 0
    invented[:, : rng.integers(ids.shape[1] + 1)] = False
    predicted_ids[invented] = 99
    predicted_segments.append({"id": 99, "category_id": categories[0]["id"]})
    shown = set(np.unique(predicted_ids).tolist())
    return predicted_ids, [segment for segment in predicted_segments if segment["id"] in shown]


def write_panoptic(
    folder: Path, categories, samples: list[Sample], predicted: bool = False
) -> tuple[str, str]:
    """Write the true or predicted PNGs and a panoptic JSON; return the JSON and the PNG folder."""
    annotations = []
    for s in samples:
        ids, segments = (s.ids, s.segments)
        if predicted:
            ids, segments = (s.predicted_ids, s.predicted_segments)
        write_panoptic_png(folder / s.png, ids)
        annotations.append({"image_id": s.image_id, "file_name": s.png, "segments_info": segments})
    json_file = folder.with_suffix(".json")
    json_file.write_text(json.dumps({"categories": categories, "annotations": annotations}))
    return str(json_file), str(folder)


def register(name: str, folder: Path, categories, samples: list[Sample]) -> None:
    """Write and register a data set in the form of Detectron2's "separated" panoptic data sets."""
    things = [c for c in categories if c["isthing"]]
    stuff = [c for c in categories if not c["isthing"]]
    thing_ids = {c["id"]: i for i, c in enumerate(things)}
    stuff_ids = {0: 0, **{c["id"]: i + 1 for i, c in enumerate(stuff)}}
    panoptic_json, panoptic_root = write_panoptic(folder / "panoptic", categories, samples)
    (folder / "sem_seg").mkdir()
    records, annotations = [], []
    for sample in samples:
        label = np.full(sample.ids.shape, 255, dtype=np.uint8)
        for segment in sample.segments:
            mask = sample.ids == segment["id"]
            label[mask] = stuff_ids.get(segment["category_id"], 0)
            if segment["category_id"] in thing_ids:
                annotations.append(_instance(len(annotations) + 1, sample.image_id, segment, mask))
        Image.fromarray(label).save(folder / "sem_seg" / sample.png)
        records.append(
            {
                "file_name": f"{folder}/images/{sample.image_id:0>6}.jpg",
                "image_id": sample.image_id,
                "sem_seg_file_name": str(folder / "sem_seg" / sample.png),
            }
        )
    images = [
        {"id": s.image_id, "height": s.ids.shape[0], "width": s.ids.shape[1]} for s in samples
    ]
    instances = {"images": images, "categories": things, "annotations": annotations}
    (folder / "instances.json").write_text(json.dumps(instances))
    DatasetCatalog.register(name, lambda: records)
    MetadataCatalog.get(name).set(
        evaluator_type="coco_panoptic_seg",
        ignore_label=255,
        label_divisor=1000,
        thing_classes=[c["name"] for c in things],
        stuff_classes=["things", *(c["name"] for c in stuff)],
        thing_dataset_id_to_contiguous_id=thing_ids,
        stuff_dataset_id_to_contiguous_id=stuff_ids,
        panoptic_json=panoptic_json,
        panoptic_root=panoptic_root,
        json_file=str(folder / "instances.json"),
    )


def inputs_and_outputs(name: str, categories, samples: list[Sample], rng) -> tuple[list, list]:
    """Return an evaluator's inputs, and the outputs of a PanopticFPN that predicts the samples."""
    metadata = MetadataCatalog.get(name)
    isthing = {c["id"]: bool(c["isthing"]) for c in categories}
    outputs = []
    for sample in samples:
        segments_info = []
        for segment in sample.predicted_segments:
            kind = "thing" if isthing[segment["category_id"]] else "stuff"
            contiguous = metadata.get(f"{kind}_dataset_id_to_contiguous_id")
            segments_info.append(
                {
                    "id": segment["id"],
                    "category_id": contiguous[segment["category_id"]],
                    "isthing": kind == "thing",
                }
            )
        scores = rng.standard_normal((len(metadata.stuff_classes), *sample.ids.shape))
        outputs.append(
            {
                "panoptic_seg": (torch.from_numpy(sample.predicted_ids), segments_info),
                "sem_seg": torch.from_numpy(scores.astype(np.float32)),
                "confidence": torch.from_numpy(rng.random(sample.ids.shape, dtype=np.float32)),
            }
        )
    inputs = [
        {"file_name": record["file_name"], "image_id": record["image_id"]}
        for record in DatasetCatalog.get(name)
    ]
    return inputs, outputs


def _instance(id_: int, image_id: int, segment: dict, mask: np.ndarray) -> dict:
    rle = mask_util.encode(np.asfortranarray(mask, dtype=np.uint8))
    return {
        "id": id_,
        "image_id": image_id,
        "category_id": segment["category_id"],
        "iscrowd": segment["iscrowd"],
        "area": int(mask.sum()),
        "bbox": mask_util.toBbox(rle).tolist(),
        "segmentation": {"size": rle["size"], "counts": rle["counts"].decode()},
    }


def eroded(mask: np.ndarray, steps: int) -> np.ndarray:
    """Erode a mask, bool [H, W], ``steps`` times by a 3x3 square (outside the image: False)."""
    height, width = mask.shape
    for _ in range(steps):
        padded = np.pad(mask, 1)
        shifted = [padded[v : v + height, u : u + width] for v in range(3) for u in range(3)]
        mask = np.logical_and.reduce(shifted)
    return mask
