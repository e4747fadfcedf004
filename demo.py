#!/usr/bin/env python
"""Run ``ocr-panoptic predict --overlays``, which draws the segments over images or a video."""

import sys
from collections.abc import Sequence
from typing import Any

from ocr_panoptic.cli import call, run_command


def main(argv: Sequence[str]) -> Any:
    return call("predict", ["--overlays", *argv])


if __name__ == "__main__":
    run_command("predict", ["--overlays", *sys.argv[1:]])
