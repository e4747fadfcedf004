"""
Convert another code base's published OCR weights into a checkpoint and its config.

    ocr-panoptic convert --from hrnet hrnet_ocr_cs_8162_torch11.pth \\
        output/converted/hrnet_cityscapes.pth \\
        --config-file Cityscapes-SemanticSegmentation/ocr_HRNet_W48_s4_40k_bs8

The command also writes the config, here hrnet_cityscapes.yaml: the training config named by
--config-file, with the settings that the weights need. docs/checkpoints.md names the --config-file
for each published file. Models that `ocr-panoptic models` lists need no conversion. If the output
is put into the folder that this command names, its name without .pth is the name of a model.
"""

import argparse

from ocr_panoptic.errors import MissingFileError

from .arguments import CommandParser, path

LAYOUTS = ("hrnet", "mmseg", "nvidia", "openseg")


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("--from", dest="source", required=True, choices=LAYOUTS)
    parser.add_argument("input", type=path, help="published weights file")
    parser.add_argument("output", type=path, help="file to write (.pth or .safetensors)")
    parser.add_argument("--config-file", required=True, help="training config of this model")
    trusting = "load a pickle even if it may run code; only for files that you trust"
    parser.add_argument("--trust-pickle", action="store_true", help=trusting)
    parser.add_argument("--opts", nargs=argparse.REMAINDER, default=[], help="KEY VALUE ...")
    return parser


def run(args: argparse.Namespace) -> None:
    if not args.input.is_file():
        raise MissingFileError(f"{args.input}: file not found")
    from functools import partial

    from ocr_panoptic.checkpoint.conversion import convert_file
    from ocr_panoptic.predict.named_models import converted_config, identity_of_data

    conversion = convert_file(
        args.source,
        args.input,
        args.output,
        partial(converted_config, args.config_file, args.opts),
        identity_of=identity_of_data,
        trust_pickle=args.trust_pickle,
    )
    print(conversion.report())
    print(f"Wrote {args.output} and {args.output.with_suffix('.yaml')}")
