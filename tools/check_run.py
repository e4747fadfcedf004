#!/usr/bin/env python
"""``ocr-panoptic check``."""

from functools import partial

from ocr_panoptic.cli import call, run_command

main = partial(call, "check")

if __name__ == "__main__":
    run_command("check")
