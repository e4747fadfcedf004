"""
The laboratory: studies of many runs, receptive fields, drawn tiles, complexity. It uses
``ocr_panoptic`` and is used by nothing."""
