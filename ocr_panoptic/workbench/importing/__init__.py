"""Import of annotation tools' labels as panoptic or semantic data sets."""
