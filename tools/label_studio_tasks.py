#!/usr/bin/env python
"""
Convert the predictions in coco.json to tasks for Label Studio, with exact brush masks.

    python tools/label_studio_tasks.py predicted/coco.json "/data/local-files/?d=city/images/" tasks.json

The labels are of <BrushLabels name="label" toName="image">. The program needs the package
label-studio-sdk. (Label Studio's own converter of COCO's format reads no run lengths.)
"""  # noqa: E501

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from pycocotools.coco import COCO


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("predictions", type=Path, help="coco.json of `ocr-panoptic predict`")
    parser.add_argument("prefix", help="address of the images, before their names")
    parser.add_argument("output", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    from label_studio_sdk.converter.brush import mask2rle  # not needed for --help

    coco, tasks = COCO(args.predictions), []
    for image in coco.dataset["images"]:
        size = {"original_width": image["width"], "original_height": image["height"]}
        results = [
            {
                **{"type": "brushlabels", "from_name": "label", "to_name": "image", **size},
                "value": {
                    "format": "rle",
                    "rle": mask2rle(255 * coco.annToMask(found)),
                    "brushlabels": [coco.cats[found["category_id"]]["name"]],
                },
                "score": found["score"],
            }
            for found in coco.imgToAnns[image["id"]]
        ]
        data = {"image": args.prefix + image["file_name"]}
        tasks.append({"data": data, "predictions": [{"result": results}]})
    args.output.write_text(json.dumps(tasks), encoding="utf-8")


if __name__ == "__main__":
    main()
