#!/usr/bin/env python
"""
Write the predictions of tools/predict.py as a file that an annotation tool imports, so that a
person corrects instead of draws. docs/imports.md tells how each tool takes it.

    python tools/export_annotations.py --predictions FOLDER --to cvat|coco|label-studio \\
        --output FILE
"""

import argparse
from pathlib import Path

from ocr_panoptic.data.annotations.exporting import (
    EXPORTS,
    Project,
    project_setup,
    write_export,
)
from ocr_panoptic.engine import run_program
from ocr_panoptic.prediction.preannotations import read_predictions

LABEL_STUDIO = {
    "from_name": "name of <BrushLabels>",
    "to_name": "name of <Image>",
    "data_key": "data of a task that holds its image: the KEY of value=$KEY",
    "url_prefix": "what stands before the images' names there",
}


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--predictions",
        required=True,
        type=Path,
        help="folder that tools/predict.py wrote, or a panoptic JSON with its folder of PNGs",
    )
    parser.add_argument("--to", required=True, choices=EXPORTS)
    parser.add_argument("--output", required=True, type=Path, help="file to write")
    group = parser.add_argument_group("Label Studio's labelling interface and images")
    for name, what in LABEL_STUDIO.items():
        default = getattr(Project, name)
        group.add_argument(f"--{name.replace('_', '-')}", help=f"{what}, by default {default}")
    args = parser.parse_args(argv)
    if args.to != "label-studio" and any(getattr(args, name) for name in LABEL_STUDIO):
        parser.error(f"--to {args.to}: the options of Label Studio are of --to label-studio")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    predictions = read_predictions(args.predictions)
    named = {name: getattr(args, name) for name in LABEL_STUDIO if getattr(args, name)}
    known = {"frames": predictions.frames, "model_version": predictions.model_version}
    project = Project(predictions.colors, **known, **named)
    write_export(args.to, predictions.images, project, args.output)
    print(f"Wrote the predictions of {predictions.count} images: {args.output}")
    print(f"The project needs these labels:\n{project_setup(args.to, project)}")


if __name__ == "__main__":
    run_program(main)
