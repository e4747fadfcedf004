#!/usr/bin/env python
"""``ocr-panoptic regions``."""

from functools import partial

from ocr_panoptic.cli import call, run_command

main = partial(call, "regions")

if __name__ == "__main__":
    run_command("regions")
