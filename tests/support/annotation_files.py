"""Write annotations of small images in every format, as annotation tools write them."""

import base64
import io
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from pycocotools import mask as rle

from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.workbench.importing.voc import voc_color


class Box(NamedTuple):
    """A rectangular segment of a scene; ``bottom`` and ``right`` are excluded."""

    label: str
    top: int
    bottom: int
    left: int
    right: int

    def corners(self, end: int) -> list[tuple[float, float]]:
        """Return the corners (x, y) of the outline (end 0), or the four corner pixels (end 1)."""
        x0, x1, y0, y1 = self.left, self.right - end, self.top, self.bottom - end
        return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]

    def pixels(self, size: tuple[int, int]) -> np.ndarray:
        found = np.zeros(size, bool)
        found[self.top : self.bottom, self.left : self.right] = True
        return found


Scenes = dict[str, Sequence[Box]]  # name of an image -> its segments
SIZE = 24, 40
SCENES: Scenes = {
    "a.png": [Box("car", 3, 8, 25, 36), Box("sky", 10, 20, 2, 30)],
    "s/b.png": [Box("car", 0, 24, 30, 40), Box("car", 5, 9, 0, 7)],
}
CLASSES = ("car", "sky")
IDS = {"car": 26, "sky": 23}  # label ids of Cityscapes
Written = tuple[Path, Path | None]  # file or folder of annotations, folder of images


def save(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def coco(
    *annotations: dict,
    size: tuple[int, int],
    names: tuple[str, ...] = ("a.png",),
    classes: tuple[str, ...] = ("dog", "sky"),
    **others: object,
) -> dict:
    """
    Return the content of a COCO JSON, with ids 1, 2, ... in each list.

    Annotations belong to the first image and the first class, unless they say otherwise.
    """
    own = {"image_id": 1, "category_id": 1, "iscrowd": 0}
    content = {
        "images": [{"file_name": name, "height": size[0], "width": size[1]} for name in names],
        "annotations": [own | annotation for annotation in annotations],
        "categories": [{"name": name} for name in classes],
    }
    return {k: [{"id": n, **e} for n, e in enumerate(v, 1)] for k, v in content.items()} | others


def run_lengths(pixels: np.ndarray) -> dict:
    """Return the compressed run lengths of a mask [H, W], in COCO's JSON form."""
    code = rle.encode(np.asfortranarray(pixels, np.uint8))
    return {"size": code["size"], "counts": code["counts"].decode()}


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def base64_png(pixels: np.ndarray) -> str:
    return base64.b64encode(png(pixels)).decode()


def bitmap(pixels: np.ndarray, label: str = "ball", **changes: object) -> dict:
    """Return a mask as a Supervisely bitmap with its upper left corner at x = 60, y = 2."""
    data = base64.b64encode(zlib.compress(png(pixels.astype(np.uint8) * 255))).decode()
    shape = {"data": data, "origin": [60, 2]} | changes
    return {"classTitle": label, "geometryType": "bitmap", "bitmap": shape}


def brush(pixels: np.ndarray) -> list[int]:
    """Return the bytes that Label Studio's brush stores for a mask, bool [H, W]."""
    flat = pixels.ravel()
    starts = np.flatnonzero(np.diff(flat, prepend=~flat[:1]))
    lengths = 4 * np.diff(starts, append=flat.size)
    sizes = 3, 4, 8, 16
    pieces = [f"{4 * flat.size:032b}{7:05b}", *(f"{size - 1:04b}" for size in sizes)]
    for length, inside in zip(lengths.tolist(), flat[starts].tolist(), strict=True):
        while length > 0:
            part = min(length, 1 << 16)
            which = next(i for i, size in enumerate(sizes) if part <= 1 << size)
            pieces.append(f"1{which:02b}{part - 1:0{sizes[which]}b}{255 * inside:08b}")
            length -= part
    bits = np.frombuffer("".join(pieces).encode(), np.uint8) - ord("0")
    return np.packbits(bits).tolist()


def city_polygons(*objects: object, size: tuple[int, int] = SIZE) -> dict:
    return {"imgHeight": size[0], "imgWidth": size[1], "objects": objects}


def region(value: dict, kind: str = "polygonlabels", label: str = "car", **others) -> dict:
    """Return a region in Label Studio's JSON form; ``value`` holds the region's shape."""
    size = {"original_height": SIZE[0], "original_width": SIZE[1], "image_rotation": 0}
    return {"type": kind, **size, "value": {**value, kind: [label]}, **others}


def coco_polygons(root: Path, scenes: Scenes) -> Written:
    annotations = [
        {
            "image_id": n,
            "category_id": 1 + CLASSES.index(box.label),
            "segmentation": [np.ravel(box.corners(0)).tolist()],
        }
        for n, boxes in enumerate(scenes.values(), 1)
        for box in boxes
    ]
    content = coco(*annotations, size=SIZE, names=tuple(scenes), classes=CLASSES)
    return save(root / "annotations.json", content), root / "images"


def yolo(root: Path, scenes: Scenes) -> Written:
    for name, boxes in scenes.items():
        lines = [
            f"{CLASSES.index(box.label)} "
            + " ".join(f"{x / 40} {y / 24}" for x, y in box.corners(0))
            for box in boxes
        ]
        save((root / "labels" / name).with_suffix(".txt"), "\n".join(lines))
    return save(root / "data.yaml", f"names: [{', '.join(CLASSES)}]\ntrain: images\n"), None


def supervisely(root: Path, scenes: Scenes) -> Written:
    for name, boxes in scenes.items():
        folder = root / "sets" / Path(name).parent
        image = folder / "img" / Path(name).name
        image.parent.mkdir(parents=True, exist_ok=True)
        if (root / "images" / name).exists():
            (root / "images" / name).rename(image)
        # Rounding moves these points to whole numbers.
        rings = [[(x - 0.4, y + 0.4) for x, y in box.corners(1)] for box in boxes]
        figures = [
            {"classTitle": b.label, "geometryType": "polygon", "points": {"exterior": ring}}
            for b, ring in zip(boxes, rings, strict=True)
        ]
        content = {"size": {"height": SIZE[0], "width": SIZE[1]}, "objects": figures}
        save(folder / f"ann/{image.name}.json", content)
    return root / "sets", None


def cityscapes(root: Path, scenes: Scenes) -> Written:
    for name, boxes in scenes.items():
        ids = np.zeros(SIZE, np.uint16)
        for number, box in enumerate(boxes):
            thing = box.label == "car"
            ids[box.pixels(SIZE)] = IDS[box.label] * 1000 + number if thing else IDS[box.label]
        write_label_png(root / "gtFine" / f"{Path(name).with_suffix('')}_instanceIds.png", ids)
    return root / "gtFine", root / "images"


def cityscapes_polygons(root: Path, scenes: Scenes) -> Written:
    for name, boxes in scenes.items():
        objects = [{"label": box.label, "polygon": box.corners(1)} for box in boxes]
        name = f"{Path(name).with_suffix('')}_gtFine_polygons.json"
        save(root / "gtFine" / name, city_polygons(*objects))
    return root / "gtFine", root / "images"


def voc(root: Path, scenes: Scenes) -> Written:
    """Write scenes as Pascal VOC's colour PNGs with a ``labelmap.txt``, like CVAT."""
    labels = ("background", *CLASSES)
    palette = np.array([voc_color(index) for index in range(256)], np.uint8)
    for name, boxes in scenes.items():
        maps = np.zeros((2, *SIZE), np.uint8)
        for number, box in enumerate(boxes, 1):
            inside = box.pixels(SIZE)
            maps[0][inside] = labels.index(box.label)
            maps[1][inside] = number if box.label == "car" else 0
        for folder, values in zip(("SegmentationClass", "SegmentationObject"), maps, strict=True):
            path = root / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(palette[values]).save(path)
    lines = [f"{name}:{','.join(map(str, palette[n]))}::" for n, name in enumerate(labels)]
    save(root / "labelmap.txt", "\n".join(lines))
    return root, root / "images"


def cvat(root: Path, scenes: Scenes) -> Written:
    def shape(box: Box) -> str:
        points = ";".join(f"{x:.2f},{y:.2f}" for x, y in box.corners(0))
        return f'<polygon label="{box.label}" points="{points}"/>'

    images = [
        f'<image name="{name}" height="24" width="40">{"".join(map(shape, boxes))}</image>'
        for name, boxes in scenes.items()
    ]
    text = f"<annotations><version>1.1</version><meta/>{''.join(images)}</annotations>"
    return save(root / "annotations.xml", text), None


def labelme(root: Path, scenes: Scenes) -> Written:
    for name, boxes in scenes.items():
        shapes = [
            {"label": box.label, "shape_type": "polygon", "points": box.corners(1)} for box in boxes
        ]
        size = {"imageHeight": SIZE[0], "imageWidth": SIZE[1]}
        up = "..\\" * len(Path(name).parts)
        content = {"imagePath": f"{up}images\\{Path(name)}", **size, "shapes": shapes}
        save((root / "labels" / name).with_suffix(".json"), content)
    return root / "labels", root / "images"


def label_studio(root: Path, scenes: Scenes) -> Written:
    def shape(box: Box) -> dict:
        points = [(100 * x / SIZE[1], 100 * y / SIZE[0]) for x, y in box.corners(0)]
        return region({"points": points, "closed": True}, label=box.label)

    tasks = [
        {
            "id": number,
            "data": {"image": f"/data/local-files/?d=x/{name}"},
            "annotations": [{"id": 1, "result": [shape(box) for box in boxes]}],
        }
        for number, (name, boxes) in enumerate(scenes.items(), 1)
    ]
    return save(root / "export.json", tasks), root / "images"


def via_polygons(root: Path, scenes: Scenes) -> Written:
    content = {}
    for name, boxes in scenes.items():
        regions = [
            {
                "region_attributes": {"class": box.label},
                "shape_attributes": {
                    **{"name": "polygon", "all_points_x": [x for x, _ in box.corners(0)]},
                    "all_points_y": [y for _, y in box.corners(0)],
                },
            }
            for box in boxes
        ]
        content[f"{name}99"] = {"filename": name, "size": 99, "regions": regions}
    return save(root / "via.json", {"_via_img_metadata": content}), root / "images"


def via_rectangles(root: Path, scenes: Scenes) -> Written:
    """Write scenes as VIA 1 rectangles, with numbered regions and classes as check boxes."""
    source, images = via_polygons(root, scenes)
    content = json.loads(source.read_text())["_via_img_metadata"]
    for name, boxes in scenes.items():
        entry = content[f"{name}99"]
        for box, region in zip(boxes, entry["regions"], strict=True):
            place = {"x": box.left, "y": box.top, "width": box.right - box.left}
            shape = {"name": "rect", **place, "height": box.bottom - box.top}
            region["shape_attributes"] = shape
            region["region_attributes"] = {"what": {"no": False, box.label: True}}
        entry["regions"] = dict(enumerate(entry["regions"]))
    return save(source, content), images


# (format, function that writes it). The tools' own exports (test_tools.py) cover other shapes.
WRITERS: list[tuple[str, Callable[[Path, Scenes], Written]]] = [
    *(("coco", coco_polygons), ("voc", voc), ("yolo-seg", yolo), ("supervisely", supervisely)),
    *(("cityscapes", cityscapes), ("cityscapes-polygons", cityscapes_polygons), ("cvat", cvat)),
    *(("labelme", labelme), ("label-studio", label_studio)),
    *(("via", via_polygons), ("via", via_rectangles)),
]
