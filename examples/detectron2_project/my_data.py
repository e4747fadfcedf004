"""Register panoptic data in COCO's format: city/{train,val}/{images,panoptic,panoptic.json}."""

import json
from pathlib import Path

from detectron2.data.datasets import register_coco_panoptic


def metadata_of(json_file):
    categories = json.loads(Path(json_file).read_text())["categories"]
    metadata = {}
    for kind, isthing in (("thing", 1), ("stuff", 0)):
        own = [c for c in categories if c["isthing"] == isthing]
        metadata[f"{kind}_classes"] = [c["name"] for c in own]
        metadata[f"{kind}_dataset_id_to_contiguous_id"] = {c["id"]: k for k, c in enumerate(own)}
    return metadata


for split in ("train", "val"):
    images, pngs, json_file = (f"city/{split}/{x}" for x in ("images", "panoptic", "panoptic.json"))
    register_coco_panoptic(f"city_{split}", metadata_of(json_file), images, pngs, json_file)
