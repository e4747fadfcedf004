"""Data that an earlier version prepared: what replaces their ``dataset.json``."""

from ocr_panoptic.formats.files import printable, read_json

from .data_file import PanopticSplit, SemanticSplit, data_file_text, datasets_root

MAX_BYTES = 64 << 20
FORMATS = {
    "ocr_panoptic.prepared": (PanopticSplit, ("images", "panoptic_json", "panoptic_root")),
    "ocr_panoptic.prepared_semantic": (SemanticSplit, ("images", "labels")),
}


def former_data_file(data_set: str) -> str | None:
    """Return what to do about a data set ``<name>_<split>`` that was prepared below
    ``$DETECTRON2_DATASETS``, with the text of its data file; None where none was."""
    for path in sorted(datasets_root().glob("*/dataset.json")):
        folder = path.parent
        try:
            content = read_json(path, MAX_BYTES)
            name, described = content["name"], content["splits"]
            if data_set not in [f"{name}_{split}" for split in described]:
                continue
            kind, keys = FORMATS[content["format"]]
            splits = {
                split: kind(*(folder / paths[key] for key in keys))
                for split, paths in described.items()
            }
            channels = {"channels": content["channels"]} if "channels" in content else {}
            classes = content.get("label_space", {})
            text = data_file_text(folder, name, splits, **channels, **classes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # broken, or another program's
        return (
            f"Data set {printable(data_set)!r} was prepared by an earlier version in {folder}; "
            f"data are now read as they lie. Write this into {folder / printable(name)}.yaml, and "
            f"remove dataset.json, or name the file with --data:\n\n"
            f"{printable(text, keep=chr(10))}"
        )
    return None
