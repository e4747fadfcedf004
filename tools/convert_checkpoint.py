#!/usr/bin/env python
"""Convert published OCR weights of another code base into a checkpoint for MODEL.WEIGHTS.

    python tools/convert_checkpoint.py --from hrnet hrnet_ocr_cs_8162_torch11.pth \\
        output/converted/hrnet_HRNet_W48_cityscapes.pth \\
        --config-file configs/converted/hrnet_HRNet_W48_cityscapes.yaml

docs/checkpoints.md lists the published files, and the config of each.
"""

import argparse
from pathlib import Path

from ocr_panoptic.checkpoint import LAYOUTS, convert_file
from ocr_panoptic.engine import complete_config, load_config, run_program


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", required=True, choices=sorted(LAYOUTS))
    parser.add_argument("input", type=Path, help="the published file")
    parser.add_argument("output", type=Path, help=".pth or .safetensors")
    parser.add_argument("--config-file", required=True, help="one of configs/converted")
    parser.add_argument(
        "--inplace-abn",
        choices=["auto", "yes", "no"],
        default="auto",
        help="whether the norms are InPlaceABN's; by default the names in the file tell",
    )
    parser.add_argument(
        "--trust-pickle",
        action="store_true",
        help="read a file that runs code when it is read; only for files that you trust",
    )
    parser.add_argument(
        "--opts", nargs=argparse.REMAINDER, default=[], help="KEY VALUE ... of the config"
    )
    args = parser.parse_args(argv)
    cfg = load_config(args.config_file, ["MODEL.DEVICE", "cpu", *args.opts])
    if cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES == 0:  # else the data need not be there
        complete_config(cfg)
    conversion = convert_file(
        args.source,
        args.input,
        args.output,
        cfg,
        inplace_abn={"auto": None, "yes": True, "no": False}[args.inplace_abn],
        trust_pickle=args.trust_pickle,
    )
    print(conversion.report())
    print(f"Wrote {args.output}")


if __name__ == "__main__":
    run_program(main)
