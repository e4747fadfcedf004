"""Preparation of a data set in COCO panoptic format for Panoptic-FPN.

Panoptic-FPN trains on instance annotations and on semantic labels. Both are derived from the
panoptic PNGs and written beside a manifest that :mod:`ocr_panoptic.data.prepared` reads:

    dataset.json                  the manifest: name, categories, where everything lies
    panoptic_<split>.json         the panoptic annotations, areas and boxes from the PNGs
    instances_<split>.json        COCO instance annotations, RLE masks
    sem_seg_<split>/<name>.png    0 = things, 1..S = stuff by ascending category id, 255 = void
    .preparation/                 what has been done, see :mod:`ocr_panoptic.data.journal`

Each image is read once: its faults, and what is written of it, come from one look.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from ocr_panoptic.data.faults import first_few, gathering, raise_if_any
from ocr_panoptic.data.fingerprint import digest
from ocr_panoptic.data.journal import Journal, Work
from ocr_panoptic.data.manifest import Manifest
from ocr_panoptic.data.preparing import preparing
from ocr_panoptic.data.register import check_new_name
from ocr_panoptic.files import replacing
from ocr_panoptic.label_png import write_label_png

from .annotations import AnnotatedImage, PanopticJson
from .categories import THINGS_LABEL, Category, semantic_label_of
from .check import check_image, read_split
from .manifest import PANOPTIC_FORMAT, PreparedSplit, RawSplit
from .semantic_png import labels_of_runs

logger = logging.getLogger(__name__)

VERSION = 1  # of what is written of an image


def prepare_panoptic(
    name: str,
    splits: dict[str, RawSplit],
    output: Path,
    workers: int | None = None,
    channels: int = 3,
) -> Path:
    """Check the splits, then write ``output`` (see the module's text).

    A repetition does only what is missing or has changed. Images without any segment are left out,
    with one warning.

    Args:
        name: data sets are registered as ``<name>_<split>``.
        splits: e.g. {"train": ..., "val": ...}.
        workers: processes, see :func:`map_with_progress`.
        channels: of the images, INPUT.CHANNELS; with 3 they are of any kind and read in colour.

    Returns:
        the manifest's path.

    Raises:
        FileNotFoundError, DataFaults: as :func:`read_split` and :func:`check_image`, with the
            faults of all splits. Then nothing has been written but ``.preparation``, from which
            the next run goes on.
        ValueError: a name that is no file name or taken, an ``output`` that cannot be written or
            that another process prepares, or files in it that would be written over though they
            are somebody else's.
    """
    check_new_name(name, splits, output)
    with preparing(output):
        return _prepare(name, splits, output, workers, channels)


def _prepare(
    name: str, splits: dict[str, RawSplit], output: Path, workers: int | None, channels: int
) -> Path:
    prepared = {
        split: PreparedSplit(
            images=raw.images,
            panoptic_json=output / f"panoptic_{split}.json",
            panoptic_root=raw.panoptic_root,
            sem_seg_root=output / f"sem_seg_{split}",
            instances_json=output / f"instances_{split}.json",
        )
        for split, raw in splits.items()
    }
    PANOPTIC_FORMAT.check_free(output, prepared)
    contents, faults = {}, []
    for split, raw in splits.items():
        with gathering(faults):
            contents[split] = read_split(raw)
    faults += _category_differences(list(contents.values()))
    journals = {}
    for split, content in contents.items():
        journals[split] = Journal(output, split)
        with gathering(faults):
            _prepare_images(
                journals[split], splits[split], prepared[split], content, workers, channels
            )
        if not any(image.segments for image in content.images):
            faults.append(f"{content.path}: no image holds a segment, all pixels are void.")
    raise_if_any(faults)
    categories = next(iter(contents.values())).categories
    # First of all a manifest that says so: it marks the files as this command's, and as not to be
    # used, should it be interrupted. Last of all the same one, complete.
    manifest = Manifest(name, categories, prepared, channels=channels)
    PANOPTIC_FORMAT.write(output, replace(manifest, complete=False))
    for split, content in contents.items():
        _write_split(prepared[split], content, categories, journals[split])
    return PANOPTIC_FORMAT.write(output, manifest)


def _category_differences(contents: list[PanopticJson]) -> Iterator[str]:
    """Splits must agree on ids, names and kinds; colours may differ."""
    described = [
        {c.id: f"{c.name!r} ({'thing' if c.isthing else 'stuff'})" for c in content.categories}
        for content in contents
    ]
    for content, theirs in zip(contents[1:], described[1:], strict=True):
        ours = described[0]
        for number in sorted(ours.keys() | theirs.keys()):
            if ours.get(number) != theirs.get(number):
                yield (
                    f"category {number} is {ours.get(number, 'absent')} in {contents[0].path} and "
                    f"{theirs.get(number, 'absent')} in {content.path}: "
                    "splits must have the same categories."
                )


def _prepare_images(
    journal: Journal,
    raw: RawSplit,
    paths: PreparedSplit,
    content: PanopticJson,
    workers: int | None,
    channels: int,
) -> None:
    label_of = semantic_label_of(content.categories)
    things = [(category.id, category.isthing) for category in content.categories]
    kinds = digest(VERSION, things, *([channels] if channels != 3 else []))
    works = [
        Work(
            key=image.semantic_name,
            recipe=digest(kinds, *vars(image).values()),
            inputs=(raw.images / image.file_name, raw.panoptic_root / image.png_name),
            output=paths.sem_seg_root / image.semantic_name if image.segments else None,
        )
        for image in content.images
    ]
    prepare = partial(prepare_image, split=raw, label_of=label_of, channels=channels)
    journal.do(prepare, content.images, works, f"prepare {content.path}", workers)


def prepare_image(
    image: AnnotatedImage,
    sem_seg: Path | None,
    split: RawSplit,
    label_of: dict[int, int],
    channels: int = 3,
) -> tuple[list[str], str]:
    """Check one image and, unless it has a fault or no segment, write its semantic PNG.

    Args:
        sem_seg: the file to write; None for an image without segments.
        label_of: category id -> label of the semantic PNG, 0 for things.

    Returns:
        its faults, and lines of JSON: segments_info with area and box from the PNG, then each
        COCO instance annotation, without "id".
    """
    faults, runs = check_image(image, split, channels)
    if faults or not image.segments:
        return faults, "[]"
    write_label_png(sem_seg, labels_of_runs(runs, image.segments, label_of))
    segments = [
        {
            "id": segment["id"],
            "category_id": segment["category_id"],
            "iscrowd": int(segment.get("iscrowd", 0)),
            **runs.statistics[segment["id"]]._asdict(),
        }
        for segment in image.segments
    ]
    instances = [
        {
            "image_id": image.id,
            **{key: segment[key] for key in ("category_id", "iscrowd", "area", "bbox")},
            "segmentation": runs.run_lengths(segment["id"]),
        }
        for segment in segments
        if label_of[segment["category_id"]] == THINGS_LABEL
    ]
    return [], "\n".join(map(json.dumps, (segments, *instances)))


def _write_split(
    paths: PreparedSplit, content: PanopticJson, categories: list[Category], journal: Journal
) -> None:
    void = [image.file_name for image in content.images if not image.segments]
    if void:
        logger.warning(
            f"{content.path}: left out {len(void)} of {len(content.images)} images that hold "
            f"nothing but void: {first_few(void)}"
        )
    listed = [category.as_json() for category in categories]
    recipe, written = digest(VERSION, listed), (paths.panoptic_json, paths.instances_json)
    if journal.is_finished(recipe, written):
        return
    journal.publish()
    images, results = [], []
    for image, result in zip(content.images, journal.results, strict=True):
        if image.segments:
            images.append(image)
            results.append(result.split("\n"))
    entries = [
        json.dumps({"id": i.id, "file_name": i.file_name, "height": i.height, "width": i.width})
        for i in images
    ]
    panoptic = (
        f'{{"image_id": {json.dumps(image.id)}, "file_name": {json.dumps(image.png_name)}, '
        f'"segments_info": {result[0]}}}'
        for image, result in zip(images, results, strict=True)
    )
    _write_lists(paths.panoptic_json, entries, panoptic, listed)
    found = enumerate(chain.from_iterable(result[1:] for result in results), 1)
    # pycocotools takes id 0 for "no match".
    instances = (f'{instance[:-1]}, "id": {number}}}' for number, instance in found)
    things = [category for category in listed if category["isthing"]]
    _write_lists(paths.instances_json, entries, instances, things)
    journal.finish(recipe, written)


def _write_lists(
    path: Path, images: Iterable[str], annotations: Iterable[str], categories: list[dict]
) -> None:
    """Write a JSON of COCO's, whole or not at all, from the JSON of its parts: at once they would
    take a multiple of the memory."""
    with replacing(path) as temporary, open(temporary, "w") as file:
        for start, entries in (('{"images": [', images), ('], "annotations": [', annotations)):
            file.write(start)
            for place, entry in enumerate(entries):
                file.write(f", {entry}" if place else entry)
        file.write(f'], "categories": {json.dumps(categories)}}}')
