#!/usr/bin/env python
"""``ocr-panoptic export``."""

from functools import partial

from ocr_panoptic.cli import call, run_command

main = partial(call, "export")

if __name__ == "__main__":
    run_command("export")
