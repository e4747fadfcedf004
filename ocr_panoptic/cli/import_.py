"""
Import annotations from other tools as a panoptic or a semantic data set.

The data set's splits are called NAME_train and NAME_val. docs/imports.md describes the formats:

    coco                 SOURCE: JSON of instances, or the folder of a Roboflow export;
                         IMAGES: folder of the images
    voc                  SOURCE: folder with SegmentationClass and SegmentationObject, or a list in
                         ImageSets/Segmentation; IMAGES: by default JPEGImages beside
                         SegmentationClass
    yolo-seg             SOURCE: data.yaml; IMAGES: by default the folders that it lists
    supervisely          SOURCE: folder of a project, or of a data set in it
    cityscapes           SOURCE: folder of *_instanceIds.png, e.g. gtFine/train; IMAGES: folder,
                         e.g. leftImg8bit/train
    cityscapes-polygons  SOURCE: folder of *_polygons.json, e.g. gtFine/train; IMAGES: folder, e.g.
                         leftImg8bit/train
    cvat                 SOURCE: XML of "CVAT for images 1.1", or the unpacked export;
                         IMAGES: folder of the images, by default images/ beside the XML
    label-studio         SOURCE: JSON export; IMAGES: folder of the images
    labelme              SOURCE: folder of LabelMe's JSON files; IMAGES: folder of the images, by
                         default the folder of the JSON files
    masks                SOURCE: folder of mask images, one for each object or class; IMAGES: folder
                         of the images, by default the same folder
    via                  SOURCE: JSON of VGG Image Annotator; IMAGES: folder of the images
"""

import argparse

from ocr_panoptic.errors import UserError

from .arguments import CommandParser, path

FORMATS = [line.split()[0] for line in __doc__.splitlines() if " SOURCE: " in line]
POLYGONS = ("edges", "centres")


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("--from", required=True, choices=FORMATS, help="see above")
    parser.add_argument("--name", required=True, help="name of the data set")
    for split in ("train", "val"):
        parser.add_argument(
            f"--{split}",
            nargs="+",
            type=path,
            required=split == "train",
            metavar=("SOURCE", "FOLDER"),
            help=f"annotations to {'train on' if split == 'train' else 'evaluate on'}: SOURCE "
            "[IMAGES [LABELS]] of the formats above; LABELS has label PNGs for pixels without "
            "objects",
        )
    parser.add_argument(
        "--things",
        nargs="+",
        metavar=("FILE", "CLASS"),
        help="names of the thing classes, or a YAML file with the keys things, stuff, ignore and "
        "colors",
    )
    parser.add_argument(
        "--label-classes", type=path, help="YAML or JSON file with the classes of LABELS"
    )
    parser.add_argument(
        "--crowds",
        choices=("groups", "objects"),
        help="what iscrowd 1 means: groups of objects, or single objects",
    )
    parser.add_argument(
        "--polygons",
        choices=POLYGONS,
        help="whether polygons of coco, yolo-seg, via and label-studio follow pixel edges "
        "(default) or go through the centres of border pixels (as in the COCO of Roboflow, SAHI, "
        "supervision, V7 and Label Studio)",
    )
    parser.add_argument("--missing", choices=("skip",), help="leave out images that are missing")
    parser.add_argument("--rest", metavar="CLASS", help="stuff class for unlabelled pixels")
    parser.add_argument(
        "--semantic", action="store_true", help="make a semantic data set (no objects)"
    )
    training = "share of the images to use for training, such as 0.8; the others are for validation"
    parser.add_argument("--split", type=float, metavar="SHARE", help=training)
    parser.add_argument("--output", type=path, help="folder (default: $DETECTRON2_DATASETS/NAME)")
    parser.add_argument(
        "--workers", type=int, help="processes to use (default: one per core, up to 8)"
    )
    return parser


def run(args: argparse.Namespace) -> None:
    from ocr_panoptic.data.data_file import check_name, read_data_file
    from ocr_panoptic.data.faults import faults_listed
    from ocr_panoptic.data.places import datasets_root
    from ocr_panoptic.data.semantic.label_space import read_class_file
    from ocr_panoptic.workbench.importing.import_plan import AnnotationSource, ImportPlan
    from ocr_panoptic.workbench.importing.importing import import_annotations
    from ocr_panoptic.workbench.importing.kinds import given_kinds

    check_name(args.name, ("train", "val"))
    sources = {}
    for split in ("train", "val"):
        if paths := getattr(args, split):
            if len(paths) > 3:
                expected = "SOURCE [IMAGES [LABELS]]"
                raise UserError(f"--{split}: expected {expected}, found {len(paths)} paths.")
            sources[split] = AnnotationSource(*paths)
    output = args.output or datasets_root() / args.name
    with faults_listed(output.with_name(f"{output.name}_faults.txt")):
        plan = ImportPlan(
            format=getattr(args, "from"),
            kinds=args.things and given_kinds(args.things),
            label_space=args.label_classes and read_class_file(args.label_classes),
            crowds=args.crowds,
            polygons=args.polygons,
            rest=args.rest,
            split=args.split,
            semantic=args.semantic,
            skip_missing=args.missing == "skip",
        )
        file = import_annotations(args.name, sources, plan, output, args.workers)
    names = [f"{args.name}_{split}" for split in read_data_file(file).splits]
    print(f"Wrote {file}. Data sets: {', '.join(names)}")
