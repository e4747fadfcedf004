"""Run ``ocr-panoptic`` as ``python -m ocr_panoptic``, the form that torchrun needs."""

from ocr_panoptic.cli import main

if __name__ == "__main__":
    main()
