"""
Convert another code base's published OCR weights into a checkpoint and its config.

    ocr-panoptic convert --from hrnet hrnet_ocr_cs_8162_torch11.pth \\
        output/converted/hrnet_cityscapes.pth \\
        --config-file Cityscapes-SemanticSegmentation/ocr_HRNet_W48_s4_40k_bs8

The command also writes the config, here hrnet_cityscapes.yaml: the training config named by
--config-file, with the settings that the weights need. docs/checkpoints.md names the --config-file
for each published file.
"""

import argparse

from ocr_panoptic.errors import MissingFileError

from .arguments import CommandParser, path

LAYOUTS = ("hrnet", "mmseg", "nvidia", "openseg")


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("--from", dest="source", required=True, choices=LAYOUTS)
    parser.add_argument("input", type=path, help="the published file")
    parser.add_argument("output", type=path, help=".pth or .safetensors")
    parser.add_argument("--config-file", required=True, help="recipe for its data, see above")
    trusting = "read a file that may run code; only for files that you trust"
    parser.add_argument("--trust-pickle", action="store_true", help=trusting)
    parser.add_argument("--opts", nargs=argparse.REMAINDER, default=[], help="KEY VALUE ...")
    return parser


def run(args: argparse.Namespace) -> None:
    if not args.input.is_file():
        raise MissingFileError(f"{args.input}: file not found")
    from ocr_panoptic.checkpoint import differing_values
    from ocr_panoptic.config.files import load_config, overrides_of, quoted
    from ocr_panoptic.predict.complete import complete_config
    from ocr_panoptic.workbench.converting.convert import convert_file

    def make_config(needed):
        differing = differing_values(load_config(args.config_file), needed)
        differing.pop("MODEL.BACKBONE.NAME", None)  # a recipe for another network is refused
        needs = quoted({key: values[0] for key, values in differing.items()})
        cfg = load_config(args.config_file, {**needs, **overrides_of(args.opts)})
        if cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES == 0:  # only then are data needed
            complete_config(cfg)
        return cfg

    files = args.input, args.output
    conversion = convert_file(args.source, *files, make_config, trust_pickle=args.trust_pickle)
    print(conversion.report())
    print(f"Wrote {args.output} and {args.output.with_suffix('.yaml')}")
