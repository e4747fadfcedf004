"""
Write the predictions of ``ocr-panoptic predict`` as a file that an annotation tool imports, so that
a person corrects instead of draws. docs/imports.md tells how each tool takes it.

    ocr-panoptic export-annotations --predictions FOLDER --to cvat|coco|label-studio --output FILE
"""

import argparse
from pathlib import Path

from .arguments import CommandParser

EXPORTS = ("cvat", "coco", "label-studio")
# Fields of a project, with what they are.
LABEL_STUDIO = {
    "from_name": "name of <BrushLabels>, by default label",
    "to_name": "name of <Image>, by default image",
    "data_key": "data of a task that holds its image: the KEY of value=$KEY, by default image",
    "url_prefix": "what stands before the images' names there, by default that of local files",
}


def _fault(args: argparse.Namespace) -> str:
    if args.to != "label-studio" and any(getattr(args, name) for name in LABEL_STUDIO):
        return f"--to {args.to}: the options of Label Studio are of --to label-studio"
    return ""


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__, _fault)
    parser.add_argument(
        "--predictions",
        required=True,
        type=Path,
        help="folder that `ocr-panoptic predict` wrote, or a panoptic JSON with its folder of PNGs",
    )
    parser.add_argument("--to", required=True, choices=EXPORTS)
    parser.add_argument("--output", required=True, type=Path, help="file to write")
    group = parser.add_argument_group("Label Studio's labelling interface and images")
    for name, what in LABEL_STUDIO.items():
        group.add_argument(f"--{name.replace('_', '-')}", help=what)
    return parser


def run(args: argparse.Namespace) -> None:
    from ocr_panoptic.workbench.importing.exporting import Project, project_setup, write_export
    from ocr_panoptic.workbench.importing.preannotations import read_predictions

    predictions = read_predictions(args.predictions)
    named = {name: getattr(args, name) for name in LABEL_STUDIO if getattr(args, name)}
    known = {"frames": predictions.frames, "model_version": predictions.model_version}
    project = Project(predictions.colors, **known, **named)
    write_export(args.to, predictions.images, project, args.output)
    print(f"Wrote the predictions of {predictions.count} images: {args.output}")
    print(f"The project needs these labels:\n{project_setup(args.to, project)}")
