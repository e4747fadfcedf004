"""Recognize the annotation format of a file that is named as a data file."""

from pathlib import Path

from ocr_panoptic.data.data_file import DataFile, DataFiles, NoDataFile, read_data_files
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable


def read_given_files(files: DataFiles) -> list[DataFile]:
    """Read data files; if one holds annotations of a known format, say how to use them."""
    try:
        return read_data_files(files)
    except NoDataFile as error:
        if hint := _hint(error.path, error.content):
            raise UserError(f"{printable(error.path)}: {hint}") from error
        raise


def _hint(path: Path, content: object) -> str:
    keys = {*content} if isinstance(content, dict) else set()
    if isinstance(content, dict) and {"images", "annotations", "categories"} <= keys:
        if "segments_info" in _keys_of_first(content["annotations"]):
            return (
                "is a panoptic JSON. A data file names it, as datasets/README.md shows: panoptic: "
                f"{{train: {{images: FOLDER, annotations: {path.name}, segments: FOLDER}}}}"
            )
        format = "coco"
    elif path.suffix.lower() == ".xml":
        format = "cvat"
    elif {"data", "annotations"} <= _keys_of_first(content):
        format = "label-studio"
    elif "names" in keys and {"train", "val", "nc", "path"} & keys:
        format = "yolo-seg"
    elif {"shapes", "imagePath"} <= keys:
        format = "labelme"
    elif "_via_img_metadata" in keys or "regions" in _keys_of_first(content):
        format = "via"
    else:
        return ""
    return (
        "holds annotations, and describes no data. Import them, and give what that writes: "
        f"ocr-panoptic import --from {format} --name NAME --train ... (see docs/imports.md)"
    )


def _keys_of_first(entries: object) -> set:
    """Return the keys of the first element if it is a dict, else an empty set."""
    values = [*entries.values()] if isinstance(entries, dict) else entries
    first = values[0] if isinstance(values, list) and values else None
    return {*first} if isinstance(first, dict) else set()
