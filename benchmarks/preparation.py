"""Cost of preparing a panoptic data set, of repeating that, and of a training's start.

    python benchmarks/preparation.py [--images 20000] [--size 120 160] [--multiply 1]
                                     [--repository .]

The images are synthetic: 64 different ones of noise under 4 bands of stuff and 7 things, about as
many as COCO's images have, and links to them under as many names as asked for. Each step is a
process of its own, whose CPU time (user and system), wall time and largest resident memory (of
Linux; without the preparation's other processes, if there are any) are those that the system
reports. The start is what happens before the first image is read: the records of all images, the
checks and tables of Detectron2, the training's stream. As it reads no image, it can be measured
with the prepared JSONs of many times the images (--multiply). "Imports" is the same process
without it. The digest is that of all files prepared, by which two versions of the code
(--repository) can be compared.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.coco_panoptic import write_panoptic_png

NUM_DIFFERENT = 64
NUM_STUFF, NUM_THINGS = 4, 7
CATEGORIES = [
    {"id": number, "name": f"category {number}", "isthing": int(number <= 80)}
    for number in range(1, 134)
]
# Python in front of each step. Not the memory of wait4, to which the parent's counts.
MEASURED = """
import atexit, os, re, runpy, sys
def write_peak():
    with open("/proc/self/status") as status, open(os.environ["PEAK"], "w") as file:
        file.write(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1])
atexit.register(write_peak)
sys.path.remove("")  # the folder of now may hold other code than PYTHONPATH names
"""
SCRIPT = """
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
IMPORTS = """
from ocr_panoptic.data import register_prepared
from ocr_panoptic.engine import Trainer, complete_config, load_config
"""
START = """
cfg = load_config(sys.argv[1], ["DATASETS.TRAIN", ("synthetic_train",), "DATASETS.TEST", (),
                                "MODEL.DEVICE", "cpu", "SEED", 1])
register_prepared()
complete_config(cfg, training=True)
stream = Trainer.build_train_loader(cfg)
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


def write_raw(folder: Path, num_images: int, size: tuple[int, int]) -> None:
    """Images, panoptic PNGs and the JSON."""
    rng = np.random.default_rng(0)
    sources, drawn = folder / "sources", []
    for place in range(min(num_images, NUM_DIFFERENT)):
        ids, segments = draw(rng, size)
        drawn.append(segments)
        write_panoptic_png(sources / f"{place}.png", ids)
        noise = rng.integers(0, 256, (size[0] // 8, size[1] // 8, 3), np.uint8)
        picture = Image.fromarray(noise).resize(size[::-1], Image.Resampling.BICUBIC)
        picture.save(sources / f"{place}.jpg", quality=90)
    images, annotations = [], []
    for kind in ("jpg", "png"):
        (folder / kind).mkdir()
    for number in range(num_images):
        place, stem = number % len(drawn), f"{number:012d}"
        for kind in ("jpg", "png"):
            os.link(sources / f"{place}.{kind}", folder / kind / f"{stem}.{kind}")
        entry = {"id": number, "file_name": f"{stem}.jpg", "height": size[0], "width": size[1]}
        images.append(entry)
        annotations.append(
            {"image_id": number, "file_name": f"{stem}.png", "segments_info": drawn[place]}
        )
    content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
    (folder / "panoptic.json").write_text(json.dumps(content))


def measure(
    code: str, arguments: list[object], environment: dict[str, str]
) -> tuple[float, float, float]:
    """CPU seconds, wall seconds and MiB of Python code."""
    command = [sys.executable, "-c", MEASURED + code, *map(str, arguments)]
    start = time.perf_counter()
    with open(environment["LOG"], "ab") as log:
        child = os.posix_spawnp(
            command[0],
            command,
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, log.fileno(), fd) for fd in (1, 2)],
        )
        _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(Path(environment["LOG"]).read_text()[-3000:])
    wall = time.perf_counter() - start
    peak = int(Path(environment["PEAK"]).read_text()) / 1024
    return usage.ru_utime + usage.ru_stime, wall, peak


def multiply(folder: Path, times: int) -> None:
    """Let the prepared JSONs have the images so many times, each time under other ids and names."""
    for path in (folder / "panoptic_train.json", folder / "instances_train.json"):
        content = json.loads(path.read_text())
        number = len(content["images"])
        for key, name in (("images", "id"), ("annotations", "image_id")):
            content[key] = [
                {**entry, name: entry[name] + shift * number}
                for shift in range(times)
                for entry in content[key]
            ]
            for place, entry in enumerate(content[key]):
                if "file_name" in entry:
                    entry["file_name"] = f"{entry[name]:012d}{Path(entry['file_name']).suffix}"
                else:
                    entry["id"] = place + 1
        path.write_text(json.dumps(content))


def digest_of(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted((folder / "sem_seg_train").iterdir()):
        found.update(path.name.encode() + path.read_bytes())
    for name in ("panoptic_train.json", "instances_train.json"):
        found.update((folder / name).read_bytes())
    return found.hexdigest()[:16]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=20000)
    parser.add_argument("--size", type=int, nargs=2, default=(120, 160), help="height and width")
    parser.add_argument("--multiply", type=int, default=1, help="images of the start, times")
    parser.add_argument("--workers", type=int, default=1, help="processes of the preparation")
    parser.add_argument(
        "--repository",
        type=Path,
        default=Path(__file__).resolve().parents[1],
        help="the code measured: this one, or another checkout of the project",
    )
    args = parser.parse_args(argv)
    repository = args.repository.resolve()
    with tempfile.TemporaryDirectory() as name:
        raw = Path(name, "raw")
        write_raw(raw, args.images, tuple(args.size))
        environment = {
            **os.environ,
            "PYTHONPATH": str(repository),
            "DETECTRON2_DATASETS": name,
            "LOG": str(Path(name, "log")),
            "PEAK": str(Path(name, "peak")),
        }
        script = repository / "datasets" / "prepare_panoptic.py"
        options = ["--name", "synthetic", "--workers", args.workers]
        data = ["--train", raw / "jpg", raw / "panoptic.json", raw / "png"]
        prepare = SCRIPT, [script, *options, *data]
        config = repository / "configs/quick_schedules/panoptic_fpn_ocr_R_18_scenes.yaml"
        steps = {
            "imports": (IMPORTS, []),
            "preparation": prepare,
            "the same again": prepare,
        }
        rows = [(step, *measure(*what, environment)) for step, what in steps.items()]
        found = digest_of(Path(name, "synthetic"))
        if args.multiply > 1:
            multiply(Path(name, "synthetic"), args.multiply)
        for step in ("first start", "further start"):
            rows.append((step, *measure(IMPORTS + START, [config], environment)))
    print(
        f"{args.images} images of {args.size[0]}x{args.size[1]}, {args.workers} process(es), "
        f"{os.cpu_count()} CPU cores; files {found}; {args.images * args.multiply} at the start"
    )
    headers = ("step", "CPU s", "wall s", "MiB")
    print(tabulate(rows, headers, floatfmt=(None, ".1f", ".1f", ".0f")))


if __name__ == "__main__":
    main()
