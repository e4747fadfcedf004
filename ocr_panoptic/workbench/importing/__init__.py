"""Labels of annotation tools, read into one form and written as panoptic or semantic data sets."""
