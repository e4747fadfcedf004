#!/usr/bin/env python
"""``ocr-panoptic report``."""

from functools import partial

from ocr_panoptic.cli import call, run_command

main = partial(call, "report")

if __name__ == "__main__":
    run_command("report")
