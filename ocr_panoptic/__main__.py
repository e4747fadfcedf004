"""``python -m ocr_panoptic``, for torchrun."""

from ocr_panoptic.cli import main

if __name__ == "__main__":
    main()
