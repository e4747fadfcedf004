"""
Programs for research: studies of many runs, receptive fields, generated tiles, complexity.

The package ``ocr_panoptic`` does not depend on these programs.
"""
