"""
Write the files beside this file, each with the tool's own library, from ``panoptic.json``.

These are two drawn scenes of 64x48 pixels with their truth. Use a separate environment:
    pip install datumaro==1.13.12 label-studio-sdk==2.1.2 labelme==6.3.1
    export LABEL_STUDIO_TOKEN=...    # for label-studio 1.23.2, started with --user-token ... and
                                     # --enable-legacy-api-token
    QT_QPA_PLATFORM=offscreen python tests/workbench/importing/exports/make.py

``cvat.xml``        Datumaro's writer of CVAT's XML: masks
``labelme/``        LabelMe's writer: masks; ``shapes.json`` has other shapes, ``shapes.png`` the
                    objects that LabelMe draws from them
``label_studio.json``  Label Studio's export of its imports, with its SDK's run lengths
"""

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

import datumaro as dm
import numpy as np
from label_studio_sdk.converter.brush import mask2rle
from labelme._label_file import write_label_file
from labelme.utils import img_arr_to_b64, shapes_to_label
from PIL import Image

HERE = Path(__file__).parent
TRUTH = json.loads((HERE / "panoptic.json").read_text())
LABELS = [category["name"] for category in TRUTH["categories"]]
NAMES = {category["id"]: category["name"] for category in TRUTH["categories"]}


def segments():
    """Yield each image's entry, and [(class name, bool [H, W]), ...]."""
    for image, annotation in zip(TRUTH["images"], TRUTH["annotations"], strict=True):
        rgb = np.asarray(Image.open(HERE / "panoptic" / annotation["file_name"])).astype(int)
        ids = rgb[..., 0] + 256 * rgb[..., 1] + 256**2 * rgb[..., 2]
        listed = annotation["segments_info"]
        yield image, [(NAMES[s["category_id"]], ids == s["id"]) for s in listed]


def write_with_datumaro():
    items = [
        dm.DatasetItem(
            id=str(Path(image["file_name"]).with_suffix("")),
            media=dm.Image.from_file(path=str(HERE / "images" / image["file_name"])),
            annotations=[
                dm.Mask(mask, label=LABELS.index(name), id=number, group=number)
                for number, (name, mask) in enumerate(found, 1)
            ],
        )
        for image, found in segments()
    ]
    dataset = dm.Dataset.from_iterable(items, categories=LABELS)
    with TemporaryDirectory() as folder:
        dataset.export(folder, "cvat", save_media=False)
        (xml,) = Path(folder).rglob("*.xml")
        shutil.copy(xml, HERE / "cvat.xml")


def write_with_labelme():
    for image, found in segments():
        shapes = []
        for name, mask in found:
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            top, bottom, left, right = rows[0], rows[-1], columns[0], columns[-1]
            part = mask[top : bottom + 1, left : right + 1].astype(np.uint8)
            corners = [[float(left), float(top)], [float(right), float(bottom)]]
            shapes.append(shape(name, "mask", corners, mask=img_arr_to_b64(part)))
        path = HERE / "labelme" / Path(image["file_name"]).with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        up = "/".join([".."] * len(path.relative_to(HERE).parent.parts))
        save(path, f"{up}/images/{image['file_name']}", image, shapes)
    image = TRUTH["images"][0]
    drawn = [
        shape("grass", "rectangle", [[2.0, 20.0], [60.0, 46.0]]),
        shape("ball", "circle", [[30.0, 30.0], [30.0, 39.0]]),
        shape("crate", "polygon", [[5.0, 5.0], [25.0, 8.0], [22.0, 24.0], [8.0, 18.0]], group_id=3),
        shape("crate", "polygon", [[40.0, 6.0], [56.0, 4.0], [50.0, 16.0]], group_id=3),
        shape(
            "tent", "oriented_rectangle", [[44.0, 24.0], [54.0, 28.0], [50.0, 38.0], [40.0, 34.0]]
        ),
    ]
    save(HERE / "labelme_shapes" / "shapes.json", "../images/a.jpg", image, drawn)
    values = {name: number for number, name in enumerate(LABELS, 1)}
    _, objects = shapes_to_label((image["height"], image["width"]), drawn, values)
    Image.fromarray(objects.astype(np.uint8)).save(HERE / "labelme_shapes" / "shapes.png")


def shape(label, shape_type, points, group_id=None, mask=None):
    known = {"label": label, "points": points, "group_id": group_id, "description": ""}
    return {**known, "shape_type": shape_type, "flags": {}, "mask": mask}


def save(path, image_path, image, shapes):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_label_file(
        str(path),
        shapes=shapes,
        image_path=image_path,
        image_height=image["height"],
        image_width=image["width"],
    )


def write_label_studio():
    tasks = []
    for image, found in segments():
        size = {"original_width": image["width"], "original_height": image["height"]}
        same = {**size, "image_rotation": 0, "from_name": "label", "to_name": "image"}
        results = [
            {
                "id": f"r{number}",
                "type": "brushlabels",
                **same,
                "value": {
                    "format": "rle",
                    "rle": mask2rle(255 * mask.astype(np.uint8)),
                    "brushlabels": [name],
                },
            }
            for number, (name, mask) in enumerate(found)
        ]
        url = f"/data/local-files/?d=images/{image['file_name']}"
        tasks.append({"data": {"image": url}, "annotations": [{"result": results}]})
    labels = "".join(f'<Label value="{name}"/>' for name in LABELS)
    config = '<View><Image name="image" value="$image"/><BrushLabels name="label" toName="image">'
    config += f"{labels}</BrushLabels></View>"
    project = ask("POST", "/api/projects/", {"title": "scenes", "label_config": config})["id"]
    ask("POST", f"/api/projects/{project}/import", tasks)
    export = ask("GET", f"/api/projects/{project}/export?exportType=JSON")
    (HERE / "label_studio.json").write_text(json.dumps(export))


def ask(method, path, content=None):
    """Ask Label Studio on this machine."""
    request = Request(
        f"http://localhost:{os.environ.get('LABEL_STUDIO_PORT', 8080)}{path}",
        method=method,
        data=None if content is None else json.dumps(content).encode(),
        headers={
            "Authorization": f"Token {os.environ['LABEL_STUDIO_TOKEN']}",
            "Content-Type": "application/json",
        },
    )
    with urlopen(request) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    write_with_datumaro()
    write_with_labelme()
    write_label_studio()
