"""What a registered panoptic data set says of the model's classes."""

from ocr_panoptic.data.register import registered_metadata


def class_counts(dataset_name: str) -> tuple[int, int]:
    """(thing classes, classes of the semantic head) of a registered panoptic data set.

    The second is the number of stuff classes plus one, for the label "things".

    Raises:
        ValueError: no data set of that name is registered, or it is not one of Panoptic-FPN.
    """
    metadata = registered_metadata(dataset_name)
    things, stuff = (metadata.get(key) for key in ("thing_classes", "stuff_classes"))
    if not things or not stuff or stuff[0] != "things":
        raise ValueError(
            f"Data set {dataset_name!r} is not laid out for Panoptic-FPN: it needs thing_classes, "
            f"and stuff_classes that begin with 'things'; found {things} and {stuff}."
        )
    return len(things), len(stuff)
