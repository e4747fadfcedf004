"""Outlines in place of masks: what is lost."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ocr_panoptic.workbench.importing.annotated_image import AnnotatedImage
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS
from ocr_panoptic.workbench.importing.painting import paint
from support.tool_exports import KINDS, has_holes, outlines, scene

Outlined = list[tuple[str, list[list[list[float]]]]]  # of each segment its class and polygons


def write_cvat(folder: Path, image: AnnotatedImage, segments: Outlined) -> None:
    shapes = [
        f'<polygon label="{label}" group_id="{number}" z_order="{number}" points="'
        + ";".join(f"{x:.2f},{y:.2f}" for x, y in points)
        + '"/>'
        for number, (label, polygons) in enumerate(segments, 1)
        for points in polygons
    ]
    entry = f'<image name="{image.name}" width="{image.width}" height="{image.height}">'
    text = f"<annotations>{entry}{''.join(shapes)}</image></annotations>"
    (folder / "labels").write_text(text)


def write_labelme(folder: Path, image: AnnotatedImage, segments: Outlined) -> None:
    shapes = [
        {"label": label, "shape_type": "polygon", "points": points, "group_id": number}
        for number, (label, polygons) in enumerate(segments)
        for points in polygons
    ]
    size = {"imageHeight": image.height, "imageWidth": image.width}
    content = {"imagePath": f"..\\images\\{image.name}", **size, "shapes": shapes}
    (folder / "labels").mkdir()
    (folder / "labels" / "0.json").write_text(json.dumps(content))


def write_label_studio(folder: Path, image: AnnotatedImage, segments: Outlined) -> None:
    size = {"original_width": image.width, "original_height": image.height}
    results = [
        {
            "id": f"{number} {part}",
            "type": "polygonlabels",
            **size,
            "value": {
                "points": [[100 * x / image.width, 100 * y / image.height] for x, y in points],
                "closed": True,
                "polygonlabels": [label],
            },
        }
        for number, (label, polygons) in enumerate(segments)
        for part, points in enumerate(polygons)
    ]
    task = {"id": 1, "data": {"image": f"/data/upload/1/0a1b2c3d-{image.name}"}}
    task["annotations"] = [{"id": 1, "result": results}]
    (folder / "labels").write_text(json.dumps([task]))


@pytest.mark.parametrize(
    "kind, write, joins",
    [
        ("cvat", write_cvat, True),
        ("labelme", write_labelme, True),
        ("label-studio", write_label_studio, False),
    ],
)
def test_outlines_along_the_edges_of_pixels_lose_holes_alone(
    tmp_path, kind: str, write: Callable[[Path, AnnotatedImage, Outlined], None], joins: bool
):
    wrong = total = whole = 0
    for seed in range(4):
        folder = tmp_path / str(seed)
        image, ids = scene(seed, folder / "images")
        masks = {number: ids == number for number in range(1, len(image.segments) + 1)}
        order = sorted(masks, key=lambda number: -masks[number].sum())  # holes are filled by others
        outlined = [(image.segments[n - 1].label, outlines(masks[n])) for n in order]
        write(folder, image, outlined)
        (found,) = ANNOTATION_FORMATS[kind].read(folder / "labels", folder / "images")
        assert found.name == image.name
        drawn = {(s.label, s.pixels().tobytes()) for s in found.segments}
        for number, (label, polygons) in zip(order, outlined, strict=True):
            if not has_holes(masks[number]) and (joins or len(polygons) == 1):
                assert (label, masks[number].tobytes()) in drawn
                whole += 1
        if joins:  # parts of an object are one segment
            assert len(found.segments) == len(image.segments)
        ours, theirs = (paint(one, KINDS, "order").semantic(255) for one in (found, image))
        differs = ours != theirs
        assert not ids[differs].any()  # only void that a segment encloses
        wrong += differs.sum()
        total += ids.size
    assert whole >= 15
    assert 0 < wrong / total < 0.005
