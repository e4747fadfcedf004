"""Cost of loading an image, and of a training's start, beside those of another version.

    python benchmarks/data.py [--images 64] [--multiply 1844] [--size 480 640]
                              [--repository . --repository OTHER_CHECKOUT]

The images are synthetic: noise under 4 bands of stuff and 7 things, about as many as COCO's have.
Loading is the mapper's CPU time in training with COCO's sizes, and with Cityscapes' crops of
769x769 out of images of 1024x2048, drawn for it: the smallest of several rounds that the versions
take in turn. A start is what happens before the first image is read: a process of its own, whose
CPU time (user and system, with the imports of Python, which "imports" is alone) and largest
resident memory the system reports. Its annotations have the images --multiply times, under other
names; links to the same files stand for them. The first start checks all of them, and is measured
on --images alone ("check").
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png

NUM_STUFF, NUM_THINGS = 4, 7
CATEGORIES = [
    {"id": number, "name": f"category {number}", "isthing": int(number <= 80)}
    for number in range(1, 134)
]
COCO = "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x", "synthetic_train"
CITYSCAPES = "Cityscapes-SemanticSegmentation/ocr_R_101_d8_40k_bs8", "cityscapes_fine_train_sem"
STREETS = 8  # images of Cityscapes
ROUNDS = 5
# Python in front of each step; the process tells its own CPU time and memory at its end.
MEASURED = """
import atexit, os, re, sys, time
def tell():
    with open("/proc/self/status") as status:
        peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) / 1024
    with open(os.environ["TOLD"], "w") as file:
        times = os.times()
        cpu = times.user + times.system + times.children_user + times.children_system
        file.write(f"{cpu} {peak}")
atexit.register(tell)
sys.path.remove("")  # the folder of now may hold other code than PYTHONPATH names
from ocr_panoptic.engine import Trainer, complete_config, load_config
"""
CONFIG = """
names = ["DATASETS.TRAIN", (sys.argv[2],), "DATASETS.TEST", (), "MODEL.DEVICE", "cpu"]
cfg = load_config(sys.argv[1], [*names, "SEED", 1, "MODEL.ROI_HEADS.NUM_CLASSES", 0,
                                "MODEL.SEM_SEG_HEAD.NUM_CLASSES", 0,
                                "INPUT.MASK_FORMAT", "bitmask"])
complete_config(cfg, training=True)
"""
CHECK = """
from ocr_panoptic.data import check_data_sets
check_data_sets(cfg.DATASETS.TRAIN, 1)
"""
START = "stream = Trainer.build_train_loader(cfg)\n"
LOAD = """
import numpy as np
from detectron2.data import DatasetCatalog
from ocr_panoptic.engine.task import task_of
mapper, records = task_of(cfg).mapper(cfg, True), DatasetCatalog.get(sys.argv[2])
def load():
    np.random.seed(0)
    start = time.process_time()
    for record in records:
        mapper(record)
    return 1000 * (time.process_time() - start) / len(records)
load()
for line in sys.stdin:
    print("took", load(), flush=True)
"""


def draw(rng: np.random.Generator, size: tuple[int, int]) -> tuple[np.ndarray, list[dict]]:
    """Segment ids int32 [H, W] and segments_info."""
    height, width = size
    rows, columns = np.mgrid[:height, :width]
    ids = np.zeros(size, np.int32)
    numbers = (rng.choice(256**3 - 1, NUM_STUFF + NUM_THINGS, replace=False) + 1).tolist()
    categories = [
        *(rng.choice(53, NUM_STUFF, replace=False) + 81).tolist(),
        *(rng.choice(80, NUM_THINGS) + 1).tolist(),
    ]
    for band, number in enumerate(numbers[:NUM_STUFF]):
        wave = height / 24 * np.sin(columns / 17 + band) + height / 96 * np.sin(columns / 2)
        ids[rows + wave >= (band + 0.1) * height / NUM_STUFF] = number
    for number in numbers[NUM_STUFF:]:
        y, x = rng.uniform((0, 0), size)
        angle = np.arctan2(rows - y, columns - x)
        radius = rng.uniform(0.05, 0.2) * width * (1 + 0.2 * np.sin(9 * angle))
        ids[np.hypot(rows - y, columns - x) < radius] = number
    shown = set(np.unique(ids).tolist())
    segments = [
        {"id": number, "category_id": category, "iscrowd": 0}
        for number, category in zip(numbers, categories, strict=True)
        if number in shown
    ]
    return ids, segments


def write_data(folder: Path, num_images: int, size: tuple[int, int]) -> None:
    """Images, panoptic PNGs, the JSON, and the data file."""
    rng = np.random.default_rng(0)
    images, annotations = [], []
    (folder / "jpg").mkdir(parents=True)
    for number in range(num_images):
        stem = f"{number:012d}"
        ids, segments = draw(rng, size)
        write_panoptic_png(folder / "png" / f"{stem}.png", ids)
        noise = rng.integers(0, 256, (size[0] // 8, size[1] // 8, 3), np.uint8)
        picture = Image.fromarray(noise).resize(size[::-1], Image.Resampling.BICUBIC)
        picture.save(folder / "jpg" / f"{stem}.jpg", quality=90)
        entry = {"id": number, "file_name": f"{stem}.jpg", "height": size[0], "width": size[1]}
        images.append(entry)
        annotations.append(
            {"image_id": number, "file_name": f"{stem}.png", "segments_info": segments}
        )
    content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
    (folder / "panoptic.json").write_text(json.dumps(content))
    (folder / "synthetic.yaml").write_text(
        "name: synthetic\npanoptic:\n"
        "  train: {images: jpg, annotations: panoptic.json, segments: png}\n"
    )


def write_streets(folder: Path, num_images: int) -> None:
    """Images and label PNGs as Cityscapes has them, about as large as its files are."""
    rng = np.random.default_rng(0)
    for number in range(num_images):
        names = (
            f"{kind}/train/town/town_{number:06d}_000019_{suffix}.png"
            for kind, suffix in (("leftImg8bit", "leftImg8bit"), ("gtFine", "gtFine_labelIds"))
        )
        noise = rng.integers(0, 256, (64, 128, 3), np.uint8)
        picture = Image.fromarray(noise).resize((2048, 1024), Image.Resampling.BICUBIC)
        grain = rng.integers(0, 3, (1024, 2048, 3), np.uint8)
        labels = np.kron(rng.integers(0, 34, (32, 64), np.uint8), np.ones((32, 32), np.uint8))
        for name, pixels in zip(names, (np.asarray(picture) // 2 + grain, labels), strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / name)


def multiply(path: Path, times: int) -> None:
    """Let a JSON have its images so many times, each time under other ids and names."""
    content = json.loads(path.read_text())
    number = len(content["images"])
    for key, name in (("images", "id"), ("annotations", "image_id")):
        content[key] = [
            {**entry, name: entry[name] + shift * number}
            for shift in range(times)
            for entry in content[key]
        ]
        for entry in content[key]:
            entry["file_name"] = f"{entry[name]:012d}{Path(entry['file_name']).suffix}"
    path.write_text(json.dumps(content))


def link_files(folder: Path, number: int, times: int) -> None:
    for kind in ("jpg", "png"):
        for place in range(number, number * times):
            os.link(
                folder / kind / f"{place % number:012d}.{kind}",
                folder / kind / f"{place:012d}.{kind}",
            )


class Version:
    """A checkout of the project, with data of its own."""

    def __init__(self, repository: Path, root: Path, arguments: argparse.Namespace):
        self.repository = repository.resolve()
        self.folder = root / "synthetic"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(self.repository),
            "DETECTRON2_DATASETS": str(root),
            "XDG_CACHE_HOME": str(root / "cache"),
            "TOLD": str(root / "told"),
        }
        write_data(self.folder, arguments.images, tuple(arguments.size))
        write_streets(root / "cityscapes", STREETS)

    def run(self, command: list) -> None:
        found = subprocess.run(
            list(map(str, command)), env=self.environment, capture_output=True, text=True
        )
        if found.returncode:
            raise SystemExit(found.stderr[-3000:])

    def config(self, name: str) -> Path:
        return self.repository / "configs" / f"{name}.yaml"

    def measured(self, code: str) -> tuple[float, float]:
        """CPU seconds and MiB."""
        config = self.config("quick_schedules/panoptic_fpn_ocr_R_18_scenes")
        self.run([sys.executable, "-c", MEASURED + code, config, "synthetic_train"])
        cpu, peak = Path(self.environment["TOLD"]).read_text().split()
        return float(cpu), float(peak)

    def loader(self, config: str, data: str) -> subprocess.Popen:
        code = MEASURED + CONFIG + LOAD
        command = [sys.executable, "-c", code, str(self.config(config)), data]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment, stdin=pipe, stdout=pipe, text=True)

    def multiply(self, number: int, times: int) -> None:
        link_files(self.folder, number, times)
        multiply(self.folder / "panoptic.json", times)


def load_times(versions: list[Version], config: str, data: str) -> list[float]:
    """Milliseconds an image: the least of rounds that the versions take in turn."""
    loaders = [version.loader(config, data) for version in versions]
    times: list[list[float]] = [[] for _ in loaders]
    for _ in range(ROUNDS):
        for loader, own in zip(loaders, times, strict=True):
            loader.stdin.write("\n")
            loader.stdin.flush()
            while not (found := re.match(r"took (\S+)", line := loader.stdout.readline())):
                if not line:
                    raise SystemExit("a version cannot load the images")
            own.append(float(found[1]))
    for loader in loaders:
        loader.communicate()
    return [min(own) for own in times]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--size", type=int, nargs=2, default=(480, 640), help="height and width")
    parser.add_argument("--multiply", type=int, default=1, help="images of the start, times")
    parser.add_argument("--repository", type=Path, action="append", help="a checkout to measure")
    args = parser.parse_args(argv)
    repositories = args.repository or [Path(__file__).resolve().parents[1]]
    with tempfile.TemporaryDirectory() as name:
        versions = [
            Version(repository, Path(name, str(place)), args)
            for place, repository in enumerate(repositories)
        ]
        rows = [
            [f"load an image of {name}, ms", *load_times(versions, *data)]
            for name, data in (("COCO", COCO), ("Cityscapes", CITYSCAPES))
        ]
        steps = [("imports", "", 0), ("check", CONFIG + CHECK, 0)]
        for step, code, which in steps:
            rows.append([f"{step}, CPU s", *(v.measured(code)[which] for v in versions)])
        for version in versions:
            version.multiply(args.images, args.multiply)
        for step in ("first start", "later start"):
            found = [v.measured(CONFIG + START) for v in versions]
            rows.append([f"{step}, CPU s", *(cpu for cpu, _ in found)])
            rows.append([f"{step}, MiB", *(peak for _, peak in found)])
    print(
        f"{args.images} images of {args.size[0]}x{args.size[1]}, {args.images * args.multiply:,} "
        "at the start"
    )
    headers = ("", *(str(repository) for repository in repositories))
    print(tabulate(rows, headers, floatfmt=".1f"))


if __name__ == "__main__":
    main()
