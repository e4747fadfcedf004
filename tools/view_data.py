#!/usr/bin/env python
"""``ocr-panoptic view``."""

from functools import partial

from ocr_panoptic.cli import call, run_command

main = partial(call, "view")

if __name__ == "__main__":
    run_command("view")
