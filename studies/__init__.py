"""
Programs for research: studies of many runs, receptive fields, generated tiles, complexity.

They import the package ``ocr_panoptic``, which does not import them.
"""
