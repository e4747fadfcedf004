"""The sequence of training batches has Detectron2's order and can be entered anywhere."""

import errno
import multiprocessing
import os
import random
import re
import signal
import subprocess
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.config import CfgNode
from detectron2.data.common import AspectRatioGroupedDataset
from detectron2.data.samplers import TrainingSampler
from detectron2.utils import comm
from PIL import Image

from ocr_panoptic.config.files import load_config, merge_overrides, overrides_of
from ocr_panoptic.data.catalog import register_data_sets
from ocr_panoptic.data.data_file import SemanticSplit, write_data_file
from ocr_panoptic.data.loading import explained_workers
from ocr_panoptic.data.training_stream import TrainingStream, build_training_stream
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.labels import write_label_png
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG

pytestmark = pytest.mark.usefixtures("clean_catalog")

# Every third image is higher than wide, and one image is square.
RECORDS = [{"id": i, "width": 50 if i % 3 else 30, "height": 40} for i in range(11)]
RECORDS[1]["height"] = 50


def draw(record: dict) -> tuple:
    """Return the image's id and a number from each generator that an augmentation may use."""
    return record["id"], random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002


def stream(**changes) -> TrainingStream:
    options = {"batch_size": 4, "group": False, "workers": 0, "seed": 3, "mapper": draw} | changes
    sampler = TrainingSampler(len(RECORDS), seed=options["seed"])
    return TrainingStream(RECORDS, sampler, **options)


def config_of(name: str, *opts: object, file: Path = OCR_CONFIG) -> CfgNode:
    fixed = ["DATASETS.TRAIN", f"('{name}_train',)", "DATALOADER.NUM_WORKERS", "0"]
    cfg = load_config(str(file), fixed)
    merge_overrides(cfg, overrides_of(opts))  # unchecked: also samplers that configs cannot name
    return cfg


def batches(loader: TrainingStream, number: int, seen: int = 0) -> list:
    loader.seen = seen
    return list(islice(loader, number))


@pytest.mark.parametrize("group", [False, True])
def test_order_equals_detectron2s(group):
    indices = iter(TrainingSampler(len(RECORDS), seed=3))
    if group:
        expected = iter(AspectRatioGroupedDataset((RECORDS[i] for i in indices), 4))
        expected = [[record["id"] for record in next(expected)] for _ in range(9)]
    else:
        expected = [list(islice(indices, 4)) for _ in range(9)]
    found = batches(stream(group=group), 9)
    assert [[example[0] for example in batch] for batch in found] == expected


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_entered_anywhere_equals_the_whole_stream(group, workers):
    whole = batches(stream(group=group), 9)
    drawn = [example[1:] for batch in whole for example in batch]
    assert len(set(drawn)) == len(drawn)  # a repeated image is augmented differently
    for done in (0, 1, 5):
        assert batches(stream(group=group, workers=workers), 9 - done, 4 * done) == whole[done:]
    assert batches(stream(group=group, seed=4), 9) != whole


def test_generators_of_the_training_stay_unchanged():
    def seeded(number: int) -> tuple:
        random.seed(7), np.random.seed(7), torch.manual_seed(7)  # noqa: NPY002
        batches(stream(), number)
        return draw({"id": 0})

    assert seeded(0) == seeded(2)


def test_other_numbers_of_processes_see_the_same_images(monkeypatch):
    """Each step has the same images with the same augmentation, divided among the processes."""
    alone = batches(stream(), 6)
    monkeypatch.setattr(comm, "get_world_size", lambda: 2)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(comm, "get_rank", lambda rank=rank: rank)
        parts.append(batches(stream(), 6))
    for step, images in enumerate(alone):
        assert sorted(parts[0][step] + parts[1][step]) == sorted(images)
    # The other number of processes takes over after 3 steps.
    monkeypatch.undo()
    assert batches(stream(), 3, seen=12) == alone[3:]


def test_groups_by_the_files_if_the_records_have_no_size(tmp_path):
    records = []
    for i, (size, orientation) in enumerate([((8, 4), 1), ((4, 8), 1), ((8, 4), 6), ((8, 4), 1)]):
        exif = Image.Exif()
        exif[274] = orientation
        Image.new("RGB", size).save(tmp_path / f"{i}.jpg", exif=exif)
        records.append({"id": i, "file_name": str(tmp_path / f"{i}.jpg")})
    sampler = TrainingSampler(4, seed=0)
    loader = TrainingStream(records, sampler, draw, batch_size=2, group=True, workers=0, seed=0)
    groups = [{example[0] for example in batch} for batch in islice(loader, 4)]
    assert sorted(map(sorted, groups)) == [[0, 3], [0, 3], [1, 2], [1, 2]]
    records[0]["file_name"] = str(tmp_path / "none.jpg")
    with pytest.raises(ValueError, match="none.jpg: the image was not found"):
        TrainingStream(records, sampler, draw, batch_size=2, group=True, workers=0, seed=0)


@pytest.mark.parametrize(
    "kind", ["", "RepeatFactor", "RandomSubset", "Weighted", "WeightedCategory"]
)
def test_every_sampler_of_detectron2(tiny_data, kind):
    def make(seed: int) -> TrainingStream:
        opts = ["SOLVER.IMS_PER_BATCH", 2, "SEED", seed, "DATALOADER.REPEAT_THRESHOLD", 0.9]
        cfg = config_of("tiny", *opts, "DATALOADER.SAMPLER_TRAIN", f"{kind}TrainingSampler")
        # Detectron2 reads them, but some of its releases lack defaults.
        cfg.DATALOADER.RANDOM_SUBSET_RATIO = 0.7
        cfg.DATASETS.TRAIN_REPEAT_FACTOR = [("tiny_train", 1.5)]
        return build_training_stream(cfg, lambda record: record["image_id"])

    register_data_sets([], ["tiny_train"])
    whole = batches(make(1), 12)
    np.random.seed(5)  # noqa: NPY002 - only the seed counts
    assert batches(make(1), 8, seen=8) == whole[4:]
    assert batches(make(2), 12) != whole
    images = {image for batch in whole for image in batch}
    assert len(images) == (5 if kind == "RandomSubset" else 8)


def test_rare_classes_of_label_images_are_repeated(clean_catalog, tmp_path):
    """Class b is in one of ten images, so this image comes sqrt(0.9 / 0.1) = 3 times as often."""
    for k in range(10):
        labels = np.where(np.arange(6) < 2, 255, [[7, 7, 7, 7, 7, 9 if k == 4 else 7]])
        write_label_png(tmp_path / f"labels/{k}.png", labels.astype(np.uint8))
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.new("RGB", (6, 1)).save(tmp_path / f"images/{k}.jpg")
    classes = [{"name": "a", "labels": 7}, {"name": "b", "labels": 9}]
    split = SemanticSplit(tmp_path / "images", tmp_path / "labels")
    write_data_file(tmp_path / "d.yaml", "rare", {"train": split}, classes=classes, ignore=255)
    register_data_sets([tmp_path / "d.yaml"])
    opts = ["SOLVER.IMS_PER_BATCH", 1, "SEED", 0, "DATALOADER.REPEAT_THRESHOLD", 0.9]
    opts += ["DATALOADER.SAMPLER_TRAIN", "RepeatFactorTrainingSampler"]
    opts += ["DATALOADER.ASPECT_RATIO_GROUPING", False]
    cfg = config_of("rare", *opts, file=SEMANTIC_CONFIG)
    loader = build_training_stream(cfg, lambda record: Path(record["file_name"]).stem)
    counts = Counter(name for (name,) in batches(loader, 1200))
    assert counts.pop("4") == 300 and set(counts.values()) == {100}


def test_a_random_seed_differs_each_time(tiny_data):
    register_data_sets([], ["tiny_train"])
    cfg = config_of("tiny", "SEED", -1)
    seeds = {build_training_stream(cfg, draw).examples.seed for _ in range(2)}
    assert len(seeds) == 2 and min(seeds) >= 0


def test_images_without_instances_are_left_out_if_configured(raw):
    def images(usable: bool) -> list:
        cfg = config_of("pets", "DATALOADER.FILTER_EMPTY_ANNOTATIONS", usable)
        stream = build_training_stream(cfg, lambda record: record["image_id"])
        return sorted({image for batch in batches(stream, 2) for image in batch})

    raw.content["annotations"][1]["segments_info"][1]["iscrowd"] = 1  # the only thing of image 5
    raw.checked()
    assert images(False) == [5, 21] and images(True) == [21]
    raw.content["annotations"][0]["segments_info"][2]["iscrowd"] = 1
    raw.checked()
    with pytest.raises(ValueError, match="^pets_train: .*FILTER_EMPTY_ANNOTATIONS False"):
        images(True)


def fail(record: dict) -> None:
    raise UserError(f"{record['id']}.jpg: broken")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_worker_is_raised_unchanged(workers):
    with pytest.raises(UserError) as error, explained_workers():
        batches(stream(mapper=fail, workers=workers), 1)
    assert re.fullmatch(r"\d+\.jpg: broken", str(error.value))
    with pytest.raises(FileNotFoundError) as error, explained_workers():
        batches(stream(mapper=lambda record: Path("nowhere.jpg").read_bytes(), workers=workers), 1)
    assert (error.value.errno, error.value.filename) == (errno.ENOENT, "nowhere.jpg")


class Lost:
    """An image that cannot be passed on, with PyTorch's error for a full /dev/shm."""

    def __init__(self, record: dict):
        pass

    def __reduce__(self):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device")


def test_a_worker_without_room_for_an_image_ends_the_training(capfd):
    """The trainer does not wait, although Python prints the error and goes on."""
    fault = "DataLoader worker .*--shm-size .*NUM_WORKERS 0"
    with pytest.raises(UserError, match=fault), explained_workers():
        batches(stream(mapper=Lost, workers=1), 1)
    assert "to the main process: unable to allocate" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_worker_ignores_signals_to_the_whole_job(name):
    others = set(multiprocessing.active_children())
    loader = iter(stream(workers=1))
    next(loader)
    (worker,) = {*multiprocessing.active_children()} - others
    subprocess.run(["sh", "-c", f"kill -{name} {worker.pid}"], check=True)
    assert [len(next(loader)) for _ in range(5)] == [4] * 5
    os.kill(worker.pid, signal.SIGTERM)  # the trainer's own signal
    worker.join(120)
    assert worker.exitcode == 0
