"""Metrics of segmentation, and the evaluators that give them to Detectron2."""
