#!/usr/bin/env python
"""Run ``ocr-panoptic convert``."""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

from ocr_panoptic.cli import call, run_command

main = partial(call, "convert")

if __name__ == "__main__":
    run_command("convert")
