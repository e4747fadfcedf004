"""
The laboratory: studies of many runs, receptive fields, drawn tiles, complexity.

It uses ``ocr_panoptic``, and nothing uses it.
"""
