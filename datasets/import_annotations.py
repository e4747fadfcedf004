#!/usr/bin/env python
"""``ocr-panoptic import``."""

from functools import partial

from ocr_panoptic.cli import call, run_command

main = partial(call, "import")

if __name__ == "__main__":
    run_command("import")
