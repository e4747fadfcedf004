"""
Runs a trained model on many images.

:meth:`.Result.save` writes the files of each image. At the end of a run, the results of all
images are combined into:

panoptic.json    COCO panoptic format (panoptic model)
counts.csv       number of objects of each thing class in each image (panoptic model)
labels.json      classes in each image (semantic model)
coco.json        COCO instance format, with a mask for each segment
overlays.mp4     video of the overlays (if the input is a video and overlays are drawn)
"""

import errno
import json
import logging
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detectron2.utils import comm

from ocr_panoptic.evaluation.stored import write_table
from ocr_panoptic.formats.files import printable, read_json, write_lists
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.formats.video import VideoReader, write_video
from ocr_panoptic.predict.model import Model
from ocr_panoptic.predict.result import Classes, Result, classes_of, files_of
from ocr_panoptic.predict.single_image import class_metadata
from ocr_panoptic.predict.sources import Inputs, Item, ahead, summary
from ocr_panoptic.predict.trained_model import TrainedModel
from ocr_panoptic.progress import with_progress

logger = logging.getLogger(__name__)

SHOWN = 20  # largest number of faults, or of classes, in the log


def predict_all(
    trained: TrainedModel, inputs: Inputs, folder: Path, labels: str, overlays: bool
) -> int:
    """
    Run the model on images that lack up-to-date results; write JSON files about all images.

    Every process must call this function; each handles a share of the images. If a file cannot be
    written, OSError is raised; a repeated call then continues with the missing images.

    Args:
        labels: values in the written label PNGs: "train" for class indices from 0, "dataset" for
            the labels in the data set's files.

    Returns:
        number of images that failed; always 0 outside the main process
    """
    cfg, start = trained
    classes = classes_of(class_metadata(cfg), labels)
    is_panoptic = bool(classes.categories)
    files = {i.name: files_of(folder, i.name, is_panoptic, overlays) for i in inputs.items}
    mine = inputs.items[comm.get_rank() :: comm.get_world_size()]
    weights = Path(cfg.MODEL.WEIGHTS)

    def is_done(item: Item) -> bool:
        """Return whether the item has results that are no older than its image and the weights."""
        made = [_time(path) for path in files[item.name].values()]
        return min(made) >= max(_time(item.source), _time(weights), 1)

    todo = [item for item in mine if not is_done(item)]
    if len(todo) < len(mine):
        logger.info(
            "%d of %d images already have results in %s and are skipped. For another model or "
            "other options, choose another folder.",
            len(mine) - len(todo),
            len(mine),
            folder,
        )
    faults = {}
    if todo:
        model = Model(cfg, labels, start)
        logger.info("Predicting with %s", model)
        faults = _predict(model, todo, folder, overlays)
    faults = {name: why for part in comm.gather(faults) for name, why in part.items()}
    if not comm.is_main_process():
        return 0
    if inputs.left_out:
        logger.warning("%s", summary(inputs.left_out))
    done = [item for item in inputs.items if item.name not in faults]
    _merge(folder, [(item, files[item.name]) for item in done], classes)
    if overlays and inputs.items[0].frame is not None:
        drawn = (read_picture(files[item.name]["overlays"]) for item in done)
        write_video(folder / "overlays.mp4", drawn, VideoReader(inputs.entry).fps)
    logger.info("Results of %d image(s) are in %s", len(done), folder)
    if faults:
        shown = [printable(why) for why in faults.values()][:SHOWN]
        if len(faults) > SHOWN:
            shown.append("...")
        logger.error("No results for %d image(s):\n  %s", len(faults), "\n  ".join(shown))
    return len(faults)


def _predict(model: Model, items: Sequence[Item], folder: Path, overlays: bool) -> dict[str, str]:
    """Run the model on items and save the results; return the failed items' errors by item name."""

    def save(found: tuple[Item, Result | Exception]) -> tuple[str, str]:
        item, result = found
        if isinstance(result, Exception):
            return item.name, str(result)
        try:
            result.save(folder, overlays)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:  # other errors concern all images
                raise
            return (
                item.name,
                f"{item.source}: the file names of the results would be too long. Rename it",
            )
        return item.name, ""

    saved = ahead(save, model.results(items))
    shown = with_progress(saved, "predict", len(items)) if comm.is_main_process() else saved
    return {name: fault for name, fault in shown if fault}


def _time(path: Path) -> float:
    """Return when a file was last changed, in seconds; 0 if the file is absent or empty."""
    return os.path.getmtime(path) if os.path.exists(path) and os.path.getsize(path) else 0


def _merge(folder: Path, done: Sequence[tuple[Item, dict[str, Path]]], classes: Classes) -> None:
    """Write the JSON files that cover all images; image and segment ids count from 1."""
    labels = [
        {"label": int(label), "name": name, "color": list(color)}
        for label, name, color in zip(classes.labels, classes.names, classes.colors, strict=True)
    ]
    names = {entry["label"]: entry["name"] for entry in labels}
    categories = classes.categories or [{"id": c["label"], **c} for c in labels]
    # CVAT treats category 0 as "no label".
    shift = int(any(category["id"] == 0 for category in categories))
    # Kept as JSON texts, which take a fifth of the objects' memory.
    images, entries = [], []
    segments: list[str] = []
    counts: list[dict[str, Any]] = []
    things = {c["id"]: c["name"] for c in classes.categories if c["isthing"]}
    for number, (item, files) in enumerate(done, 1):
        content = read_json(files["coco"])
        image, found = {**content["images"][0], "id": number}, content["annotations"]
        images.append(json.dumps(image))
        if classes.categories:
            (annotation,) = found
            found = annotation["segments_info"]
            info = [{key: s[key] for key in s if key != "segmentation"} for s in found]
            entry = {**annotation, "image_id": number, "segments_info": info}
            objects = Counter(things.get(s["category_id"]) for s in found)
            own_counts = {name: objects[name] for name in things.values()}
            counts.append({"file_name": image["file_name"], **own_counts})
        else:
            entry = {"file_name": item.file_name, "labels": f"{item.name}.png"}
            entry |= {key: image[key] for key in ("height", "width")}
            entry["segments"] = [
                {"label": s["category_id"], "name": names[s["category_id"]]}
                | {key: s[key] for key in ("area", "confidence")}
                for s in found
            ]
        entries.append(json.dumps(entry))
        for segment in found:
            own = {"id": len(segments) + 1, "image_id": number}
            own["category_id"] = segment["category_id"] + shift
            own["score"] = segment.get("score", segment["confidence"])
            segments.append(json.dumps({**segment, **own}))
    if classes.categories:
        lists: dict[str, list] = {"annotations": entries, "images": images}
        write_lists(folder / "panoptic.json", **lists, categories=categories)
        write_table(counts, folder / "counts.csv", ["file_name", *things.values()])
        total = Counter({name: sum(row[name] for row in counts) for name in things.values()})
        means = [f"{name} {n / len(counts):.2f}" for name, n in total.most_common(SHOWN) if n]
        if means:
            logger.info(
                "Mean number of objects in an image: %s (all numbers: counts.csv)", ", ".join(means)
            )
    else:
        write_lists(folder / "labels.json", classes=labels, images=entries)
    shifted = [{"supercategory": "", **c, "id": c["id"] + shift} for c in categories]
    write_lists(folder / "coco.json", images=images, annotations=segments, categories=shifted)
