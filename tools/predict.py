#!/usr/bin/env python
"""``ocr-panoptic predict``."""

from functools import partial

from ocr_panoptic.cli import call, run_command

main = partial(call, "predict")

if __name__ == "__main__":
    run_command("predict")
