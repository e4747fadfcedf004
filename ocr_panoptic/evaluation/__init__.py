"""Segmentation metrics, and evaluators that report them to Detectron2."""
