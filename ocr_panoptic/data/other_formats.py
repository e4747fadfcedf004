"""Recognises annotation files that are given as data files, and tells how to import them."""

from pathlib import Path

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable

from .faults import first_few


def only_data_file(folder: Path) -> Path:
    """Return the single YAML file of a folder, or else its single JSON file."""
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() in (".yaml", ".yml"))
    found = found or sorted(folder.glob("*.json"))
    if len(found) != 1:
        names = f" ({first_few([path.name for path in found])})" if found else ""
        raise UserError(
            f"{printable(folder)}: is a folder with {len(found)} files{names} that could describe "
            "data. Name one; annotations of other formats are imported first (ocr-panoptic import "
            "--help)."
        )
    return found[0]


def check_is_no_annotation(path: Path, content: object) -> None:
    """
    Raise UserError with the import to type if a file holds annotations of another format.

    Args:
        content: value of the file's YAML or JSON; None of an XML file.
    """
    entry = content[0] if isinstance(content, list) and content else content
    known = entry if isinstance(entry, dict) else {}
    keys, images = known.keys(), known.get("_via_img_metadata", known)
    values = [*images.values()] if isinstance(images, dict) else []
    if path.suffix.lower() == ".xml":
        words = _import(path, "an XML file", "cvat", "IMAGES --things things.yaml --split 0.8")
    elif entry is not content and {"data", "annotations"} <= {*keys}:
        rest = "IMAGES --things things.yaml --split 0.8"
        words = _import(path, "an export of Label Studio", "label-studio", rest)
    elif isinstance(content, dict) and {"images", "annotations", "categories"} <= {*keys}:
        listed = content["annotations"]
        first = listed[0] if isinstance(listed, list) and listed else None
        words = _import(path, "a COCO JSON", "coco", "IMAGES --rest background --split 0.8")
        if isinstance(first, dict) and "segments_info" in first:
            words = (
                "is a panoptic JSON. A data file names it, as datasets/README.md shows: panoptic: "
                f"{{train: {{images: FOLDER, annotations: {path.name}, segments: FOLDER}}}}"
            )
    elif "names" in keys and {"train", "val", "nc", "path"} & {*keys}:
        split = "" if "val" in keys else " --split 0.8"
        words = _import(path, "a data.yaml of YOLO", "yolo-seg", f"--rest background{split}")
    elif {"shapes", "imagePath"} <= {*keys}:
        rest = "--things things.yaml --split 0.8"
        words = _import(path.parent, "a file of LabelMe", "labelme", rest)
    elif values and all(isinstance(v, dict) and {"filename", "regions"} <= {*v} for v in values):
        words = _import(path, "a JSON of VIA", "via", "IMAGES --things things.yaml --split 0.8")
    else:
        return
    raise UserError(f"{printable(path)}: {words}")


def _import(path: Path, what: str, format: str, rest: str) -> str:
    return (
        f"is {what}, and describes no data. Import it, and give what that writes: ocr-panoptic "
        f"import --from {format} --name NAME --train {printable(path)} {rest}"
    )
