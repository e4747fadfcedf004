#!/usr/bin/env python
"""``ocr-panoptic convert``."""

from functools import partial

from ocr_panoptic.cli import call, run_command

main = partial(call, "convert")

if __name__ == "__main__":
    run_command("convert")
