"""
Measure the receptive fields of a backbone's features, in pixels and as a share of the image.

The theoretical field is computed from the network's layers, the effective field (Luo et al. 2016)
from gradients on images.

    python -m studies.fields --config-file CONFIG (--input IMAGES | --size 192,256) \\
        [--json FILE] [MODEL.WEIGHTS FILE] [KEY VALUE ...]

Images are resized like the config's test images, and must have equal sizes afterwards. With --size,
noise images are used. Without MODEL.WEIGHTS, the network has random weights.
"""

import argparse
from pathlib import Path

from ocr_panoptic.config.files import load_config
from ocr_panoptic.formats.files import write_json
from ocr_panoptic.predict.sources import find_inputs
from ocr_panoptic.program import run_program

from ..measurement import sizes
from .measurement import build_loaded_backbone, fields_table, measure_fields, noise, normalised


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        f"python -m {__package__}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config-file", required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--input", nargs="+", help="image files, folders or lists of them")
    source.add_argument(
        "--size", type=sizes("height", "width"), help="height,width of noise images"
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="config keys and values")
    args = parser.parse_args(argv)
    cfg = load_config(args.config_file, args.opts)
    if args.input:
        found = (item.source for entry in args.input for item in find_inputs(entry).items)
        images = normalised(cfg, list(found))
    else:
        images = noise(*args.size, cfg.INPUT.CHANNELS)
    rows = measure_fields(build_loaded_backbone(cfg), images, cfg.INPUT.CHANNELS)
    print(fields_table(rows))
    if args.json:
        write_json(args.json, rows, indent=1)


if __name__ == "__main__":
    run_program(main)
