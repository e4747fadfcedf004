#!/usr/bin/env python
"""``ocr-panoptic refine``."""

from functools import partial

from ocr_panoptic.cli import call, run_command

main = partial(call, "refine")

if __name__ == "__main__":
    run_command("refine")
