#!/usr/bin/env python
"""Run ``ocr-panoptic convert``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

from ocr_panoptic.cli import run_command

if __name__ == "__main__":
    run_command("convert")
