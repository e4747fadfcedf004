"""
Programs for research: studies of many runs, receptive fields, generated tiles, complexity.

They use ``ocr_panoptic``, which does not use them.
"""
