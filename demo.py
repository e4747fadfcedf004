#!/usr/bin/env python
"""``ocr-panoptic draw``."""

from functools import partial

from ocr_panoptic.cli import call, run_command

main = partial(call, "draw")

if __name__ == "__main__":
    run_command("draw")
