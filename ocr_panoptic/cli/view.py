"""
Write an HTML page about a panoptic or semantic data set.

The page shows the faults that ocr-panoptic check finds, a table of the classes, and images with
their annotations.

    ocr-panoptic view --dataset city_train --data city.yaml --output page.html [--num-images N]
"""

import argparse

from .arguments import CommandParser, path, positive


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("--dataset", required=True, help="name of the data set")
    parser.add_data()
    parser.add_argument("--output", required=True, type=path, help="HTML file to write")
    parser.add_argument(
        "--num-images", type=positive, default=200, help="images to show (default 200)"
    )
    parser.add_argument(
        "--workers", type=int, help="processes to use (default: one per core, up to 8)"
    )
    return parser


def run(args: argparse.Namespace) -> None:
    from ocr_panoptic.data.data_file import read_data_files

    files = read_data_files(args.data)  # refuses a missing file before PyTorch is imported
    from ocr_panoptic.data.catalog import register_data_sets
    from ocr_panoptic.workbench.looking.data_view import write_data_page

    register_data_sets(files, [args.dataset])
    faults = write_data_page(args.dataset, args.output, args.num_images, args.workers)
    if faults:
        print(f"The data have {len(faults)} fault{'s' * (len(faults) > 1)}; the page lists them")
    print(f"Wrote the page {args.output} ({args.output.stat().st_size / 1e6:.1f} MB)")
