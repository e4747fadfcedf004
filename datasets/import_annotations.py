#!/usr/bin/env python
"""Import annotations of another format as a panoptic or a semantic data set, and prepare it.

It is then known as NAME_train and NAME_val. See docs/imports.md for the formats.
"""

import argparse
from pathlib import Path

from ocr_panoptic.data import (
    ANNOTATION_FORMATS,
    OVERLAPS,
    AnnotationSource,
    ImportPlan,
    check_name,
    datasets_root,
    faults_listed,
    import_annotations,
    read_class_file,
    read_kinds,
    warn_if_unseen,
)
from ocr_panoptic.engine import run_program


def main(argv: list[str] | None = None) -> None:
    args = argument_parser().parse_args(argv)
    check_name(args.name)
    sources = {
        split: source(split, getattr(args, split))
        for split in ("train", "val")
        if getattr(args, split)
    }
    output = args.output or datasets_root() / args.name
    warn_if_unseen(output)
    with faults_listed(output.with_name(f"{output.name}_faults.txt")):
        plan = ImportPlan(
            format=getattr(args, "from"),
            kinds=args.things and read_kinds(args.things),
            label_space=args.label_classes and read_class_file(args.label_classes),
            overlap=args.overlap,
            crowds=args.crowds,
            rest=args.rest,
            split=args.split,
            seed=args.seed,
            group_by=args.group_by,
            semantic=args.semantic,
        )
        manifest = import_annotations(args.name, sources, plan, output, args.workers)
    names = ("train", "val") if args.split is not None else sources
    print(f"Wrote {manifest}. Data sets: {', '.join(f'{args.name}_{split}' for split in names)}")


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=_formats()
    )
    parser.add_argument("--from", required=True, choices=ANNOTATION_FORMATS, help="see below")
    parser.add_argument("--name", required=True, help="name of the data set")
    for split in ("train", "val"):
        parser.add_argument(
            f"--{split}",
            nargs="+",
            type=Path,
            required=split == "train",
            metavar=("SOURCE", "FOLDER"),
            help="SOURCE [IMAGES [LABELS]]: the annotations, the folder of images, and a folder of "
            "semantic label PNGs to lie under them",
        )
    parser.add_argument("--things", type=Path, help="YAML: things, stuff, ignore, colors")
    parser.add_argument("--label-classes", type=Path, help="YAML or JSON: classes of LABELS")
    parser.add_argument(
        "--overlap",
        choices=OVERLAPS,
        help="which of two segments lies on top: the later one, the smaller one, the one of the "
        "higher score; by default as is usual for the format",
    )
    parser.add_argument(
        "--crowds",
        choices=("groups", "objects"),
        help="what segments are that are marked as crowds, where an image has several of a class",
    )
    parser.add_argument("--rest", metavar="CLASS", help="stuff: pixels that have no segment")
    parser.add_argument(
        "--semantic", action="store_true", help="a semantic data set: no objects, all classes"
    )
    parser.add_argument(
        "--split", type=float, metavar="SHARE", help="divide --train: the share for training"
    )
    parser.add_argument(
        "--group-by",
        help='what --split keeps together: "folder", or a regular expression whose group in the '
        "image's name is the key",
    )
    parser.add_argument("--seed", type=int, default=0, help="of --split")
    parser.add_argument(
        "--output", type=Path, help="folder to write, by default $DETECTRON2_DATASETS/NAME"
    )
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    return parser


def _formats() -> str:
    rows = [
        f"  {name:20} SOURCE: {row.source}" + (f"; IMAGES: {row.images}" if row.images else "")
        for name, row in ANNOTATION_FORMATS.items()
    ]
    return "\n".join(["formats:", *rows])


def source(split: str, paths: list[Path]) -> AnnotationSource:
    if len(paths) > 3:
        raise ValueError(f"--{split}: expected SOURCE [IMAGES [LABELS]], found {len(paths)} paths.")
    return AnnotationSource(*paths)


if __name__ == "__main__":
    run_program(main)
