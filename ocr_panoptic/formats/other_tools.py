"""Recognizes other tools' exports where they cannot be read, to say what to do with them."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from ocr_panoptic.errors import UserError

from .files import printable, read_json

_FROM = "with ocr-panoptic import --from"
_COCO = f"Export COCO with segmentations, or convert the file to COCO, and import it {_FROM} coco"
_LABEL_IMAGES = f"Export label images, and import them {_FROM} masks"

# Keys of the content or of its first entry -> the tool, and what to do.
_EXPORTS: tuple[tuple[set[str], str, str], ...] = (
    ({"shapes", "imagePath"}, "LabelMe", f"Import its folder {_FROM} labelme"),
    ({"_via_img_metadata"}, "VGG Image Annotator", f"Import it {_FROM} via"),
    ({"filename", "regions"}, "VGG Image Annotator", f"Import it {_FROM} via"),
    ({"data", "annotations"}, "Label Studio", f"Import it {_FROM} label-studio"),
    ({"annotation_id", "annotator"}, "Label Studio", 'Export "JSON", not "JSON-MIN"'),
    ({"imgHeight", "objects"}, "Cityscapes", f"Import its folder {_FROM} cityscapes-polygons"),
    ({"objects", "size", "tags"}, "Supervisely", f"Import the project {_FROM} supervisely"),
    ({"item", "annotations"}, "V7 (Darwin)", _COCO),
    ({"dataset", "image", "annotations"}, "V7 (Darwin)", _COCO),
    ({"features"}, "QuPath (GeoJSON)", _LABEL_IMAGES),
    ({"geometry"}, "QuPath (GeoJSON)", _LABEL_IMAGES),
    ({"data_row"}, "Labelbox", _COCO),
    ({"Labeled Data"}, "Labelbox", _COCO),
    ({"source-ref"}, "SageMaker Ground Truth", "Name its label PNGs in a data file"),
    ({"data_units"}, "Encord", _COCO),
    ({"externalId"}, "Kili", _COCO),
    ({"metadata", "instances"}, "SuperAnnotate", _COCO),
    ({"classId", "probability"}, "SuperAnnotate", _COCO),
    ({"label_map", "export_info"}, "Diffgram", _COCO),
    ({"caption"}, "COCO captions", "Captions have no masks: import COCO's instances"),
    ({"prefix", "suffix"}, "PaliGemma", _COCO),
    ({"dataset", "name"}, "Segments.ai", 'Export "coco-panoptic", and name it in a data file'),
    ({"itemMetadata"}, "Dataloop", _COCO),
    ({"export_format_version"}, "Hasty", _COCO),
    ({"items", "categories"}, "Datumaro", "Convert it to coco_instances, and import that"),
    ({"samples"}, "FiftyOne", "Export a COCODetectionDataset, and import that"),
    ({"openlabel"}, "OpenLABEL", _COCO),
    ({"frames"}, "Scalabel or BDD100K", _COCO),
    ({"name", "labels"}, "Scalabel or BDD100K", _COCO),
    ({"task_id", "response"}, "Scale", _COCO),
    ({"image", "annotations"}, "Create ML", f"It contains only boxes. {_COCO}"),
    ({"type", "task"}, "Ultralytics", f"Export YOLO, and import it {_FROM} yolo-seg"),
    ({"image_id", "category_id"}, "pycocotools", 'Use it as the "annotations" of a COCO JSON'),
)


def read_export(path: Path) -> Any:
    """Read a JSON; raise UserError that names the tool if it is another tool's JSON lines."""
    try:
        return read_json(path)
    except UserError as error:
        entries = []
        with open(path, "rb") as file, suppress(ValueError):
            entries.append(json.loads(file.readline()))
        raise unreadable(path, entries, str(error)) from error


def unreadable(path: Path, content: object, fault: str, given: str = "") -> UserError:
    """
    Return the error that an export cannot be read: its tool and what to do, or ``fault``.

    Args:
        given: the import format that the user has given, which would be no advice.
    """
    keys, keys_of_first = _keys(content)
    if isinstance(content, dict) and "caption" in _keys(content.get("annotations"))[1]:
        keys_of_first = {"caption"}
    for needed, tool, advice in _EXPORTS:
        if needed <= keys | keys_of_first and advice != f"Import it {_FROM} {given}":
            return UserError(f"{path}: this is an export from {tool}. {advice} (docs/imports.md).")
    return UserError(fault)


def not_a_data_file(path: Path, content: object, fault: str) -> UserError:
    """Return the error for no data file: how to use the annotations there, or ``fault``."""
    keys, _ = _keys(content)
    format = "cvat" if path.suffix.lower() == ".xml" else ""
    if isinstance(content, dict) and {"images", "annotations", "categories"} <= keys:
        if "segments_info" in _keys(content["annotations"])[1]:
            return UserError(
                f"{printable(path)}: this is a panoptic JSON. Name it in a data file, as "
                "datasets/README.md shows: panoptic: {train: {images: FOLDER, annotations: "
                f"{path.name}, segments: FOLDER}}}}"
            )
        format = "coco"
    elif "names" in keys and {"train", "val", "nc", "path"} & keys:
        format = "yolo-seg"
    if format:
        return UserError(
            f"{printable(path)}: this file holds annotations. Import them with ocr-panoptic import "
            f"--from {format} --name NAME --train ... (docs/imports.md), and give the data "
            "file that this writes."
        )
    return unreadable(path, content, fault)


def _keys(content: object) -> tuple[set, set]:
    """Return the keys of the content, and those of its first entry."""
    entries = [*content.values()] if isinstance(content, dict) else content
    first = next(iter(entries), None) if isinstance(entries, list) else None
    dicts = ({*part} if isinstance(part, dict) else set() for part in (content, first))
    return next(dicts), next(dicts)
