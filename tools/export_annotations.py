#!/usr/bin/env python
"""``ocr-panoptic export-annotations``."""

from functools import partial

from ocr_panoptic.cli import call, run_command

main = partial(call, "export-annotations")

if __name__ == "__main__":
    run_command("export-annotations")
