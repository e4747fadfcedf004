#!/usr/bin/env python
"""Run ``ocr-panoptic train``, with all its flags, under the name that Detectron2 users expect."""

from ocr_panoptic.cli import run_command
from ocr_panoptic.cli.train import argument_parser
from ocr_panoptic.cli.train import run_here as main

__all__ = ["argument_parser", "main"]

if __name__ == "__main__":
    run_command("train")
