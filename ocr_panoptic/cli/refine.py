"""
Refine label PNGs from any program with SegFix offsets (docs/segfix.md).

    ocr-panoptic refine --predictions FOLDER --output FOLDER \\
        --config-file CONFIG --weights FILE --images FOLDER [KEY VALUE ...]
    ocr-panoptic refine ... --offsets FOLDER       offset files of openseg.pytorch
    ocr-panoptic refine ... --oracle DATA_SET      offsets from the ground truth, an upper bound
"""

import argparse

from ocr_panoptic.errors import MissingFileError, UserError

from .arguments import CommandParser, path, positive


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("--predictions", required=True, type=path, help="folder of label PNGs")
    parser.add_argument("--output", required=True, type=path, help="folder for the refined PNGs")
    parser.add_argument(
        "--scale",
        type=positive,
        default=2,
        help="factor by which offsets are multiplied (default 2)",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--weights", help="weights of a trained SegFix model")
    source.add_argument(
        "--offsets", type=path, help="folder of .mat files with offsets, each named after its image"
    )
    source.add_argument(
        "--oracle", metavar="DATA_SET", help="data set whose ground truth gives the offsets"
    )
    parser.add_argument("--config-file", help="config of the SegFix model")
    parser.add_argument(
        "--images", help="folder of images, or list of images (.txt), for --weights"
    )
    reach = "with --oracle, pixels up to this distance from a boundary have offsets (default 5)"
    parser.add_argument("--boundary-distance", type=positive, default=5, help=reach)
    parser.add_opts()
    return parser


def run(args: argparse.Namespace) -> None:
    if args.weights and not (args.config_file and args.images):
        raise UserError("--weights also needs --config-file and --images")
    if not args.weights and (args.config_file or args.images or args.opts):
        raise UserError("--config-file, --images and KEY VALUE ... also need --weights")
    for flag, folder in (("predictions", args.predictions), ("offsets", args.offsets)):
        if folder and not folder.is_dir():
            raise MissingFileError(f"--{flag} {folder}: folder not found")
    from ocr_panoptic.config.files import overrides_of
    from ocr_panoptic.predict.segfix import load_segfix_config
    from ocr_panoptic.predict.sources import find_inputs
    from ocr_panoptic.workbench.refining import refine

    if args.oracle:
        offsets = refine.true_offsets(args.oracle, args.boundary_distance)
    elif args.offsets:
        offsets = refine.stored_offsets(args.offsets)
    else:
        overrides = {**overrides_of(args.opts), "MODEL.WEIGHTS": repr(args.weights)}
        cfg = load_segfix_config(args.config_file, overrides)
        items = find_inputs(args.images, args.output).items
        images = {item.name: item.source for item in items}
        offsets = refine.predicted_offsets(cfg, images)
    count = refine.refine_labels(args.predictions, args.output, offsets, args.scale)
    print(f"Wrote {count} refined label PNG(s) to {args.output}")
