"""Data that an earlier version prepared: what replaces their ``dataset.json``."""

from pathlib import Path

from ocr_panoptic.files import printable, read_json

from .data_file import PanopticSplit, SemanticSplit, data_file_text, datasets_root

MAX_BYTES = 64 << 20
FORMATS = ("ocr_panoptic.prepared", "ocr_panoptic.prepared_semantic")


def former_data_file(data_set: str) -> str | None:
    """What to do about a data set ``<name>_<split>`` that was prepared below
    ``$DETECTRON2_DATASETS``, with the text of its data file; None where none was."""
    for path in sorted(datasets_root().glob("*/dataset.json")):
        try:
            content = read_json(path, MAX_BYTES)
            name, splits = content["name"], content["splits"]
            if content["format"] not in FORMATS or data_set not in [f"{name}_{s}" for s in splits]:
                continue
            text = _text(path.parent, content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # broken, or another program's
        return (
            f"Data set {printable(data_set)!r} was prepared by an earlier version in "
            f"{path.parent}; data are now read as they lie. Write this into "
            f"{path.parent / printable(name)}.yaml, and remove dataset.json, or name the file with "
            f"--data:\n\n{printable(text, keep=chr(10))}"
        )
    return None


def _text(folder: Path, content: dict) -> str:
    if content["format"] == FORMATS[0]:
        splits = {
            split: PanopticSplit(
                folder / paths["images"],
                folder / paths["panoptic_json"],
                folder / paths["panoptic_root"],
            )
            for split, paths in content["splits"].items()
        }
        others = {}
    else:
        splits = {
            split: SemanticSplit(folder / paths["images"], folder / paths["labels"])
            for split, paths in content["splits"].items()
        }
        others = content["label_space"]
    if "channels" in content:
        others = {"channels": content["channels"], **others}
    return data_file_text(folder, content["name"], splits, **others)
