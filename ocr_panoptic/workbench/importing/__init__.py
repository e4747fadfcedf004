"""Imports the labels of annotation tools as panoptic or semantic data sets."""
