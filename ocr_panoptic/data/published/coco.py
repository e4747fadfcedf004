"""Semantic PNGs of COCO 2017 in Detectron2's layout.

Detectron2 registers ``coco_2017_{train,val,val_100}_panoptic_separated`` itself. What those lack
in the download is ``panoptic_stuff_*``: things -> 0, the 53 stuff categories in the order of
Detectron2's ``COCO_CATEGORIES`` -> 1..53, the rest -> 255, as Detectron2's
``datasets/prepare_panoptic_fpn.py`` writes them.
"""

from functools import partial
from pathlib import Path

from detectron2.data.datasets.builtin_meta import COCO_CATEGORIES

from ocr_panoptic.data.faults import raise_if_any
from ocr_panoptic.data.fingerprint import digest
from ocr_panoptic.data.journal import Journal, Work
from ocr_panoptic.data.panoptic.annotations import AnnotatedImage, read_panoptic_json
from ocr_panoptic.data.panoptic.categories import parse_categories, semantic_label_of
from ocr_panoptic.data.panoptic.semantic_png import write_semantic_png
from ocr_panoptic.data.preparing import preparing

VERSION = 1  # of what is written of an image

# Split -> the folder of PNGs that holds its images. The last are 100 images of val2017.
PNG_FOLDERS = {
    "train2017": "panoptic_train2017",
    "val2017": "panoptic_val2017",
    "val2017_100": "panoptic_val2017",
}


def prepare_coco_panoptic(root: Path, workers: int | None = None) -> list[Path]:
    """Write ``root/coco/panoptic_stuff_<split>`` for each split whose JSON is there.

    A repetition does only what is missing or has changed. For val2017_100 the link
    ``panoptic_val2017_100`` is made as well.

    Args:
        root: Detectron2's folder of data sets.
        workers: processes, see :func:`map_with_progress`.

    Returns:
        the folders written.

    Raises:
        FileNotFoundError: no panoptic JSON, or no folder of PNGs for one.
        DataFaults: a JSON that is none of COCO's, missing or broken PNGs; all are named.
        ValueError: the folder cannot be written, or another process prepares data there.
    """
    coco = root / "coco"
    found = {
        split: path
        for split in PNG_FOLDERS
        if (path := coco / "annotations" / f"panoptic_{split}.json").is_file()
    }
    if not found:
        raise FileNotFoundError(
            f"{coco}/annotations/panoptic_{{train,val}}2017.json: neither found. Lay COCO out as "
            "datasets/README.md shows, and set DETECTRON2_DATASETS to the folder that holds coco/."
        )
    for split in found:
        folder = coco / PNG_FOLDERS[split]
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{folder}: panoptic PNGs not found. "
                f"Unpack {coco}/annotations/{folder.name}.zip there."
            )
    with preparing(coco):
        return [_prepare_split(coco, split, path, workers) for split, path in found.items()]


def _prepare_split(coco: Path, split: str, panoptic_json: Path, workers: int | None) -> Path:
    categories = parse_categories(COCO_CATEGORIES, "COCO_CATEGORIES")
    content = read_panoptic_json(panoptic_json)
    known = {category.id: category.isthing for category in categories}
    pngs, output = coco / PNG_FOLDERS[split], coco / f"panoptic_stuff_{split}"
    # Ids that COCO does not have, or has for another kind, would be given wrong labels.
    faults = [
        f"{panoptic_json}: category {category.id} ({category.name!r}, isthing "
        f"{int(category.isthing)}) is none of COCO's. "
        "Data of your own go through datasets/prepare_panoptic.py."
        for category in content.categories
        if known.get(category.id) != category.isthing
    ]
    faults += [
        f"{pngs / image.png_name}: panoptic PNG not found."
        for image in content.images
        if not (pngs / image.png_name).is_file()
    ]
    raise_if_any(faults)
    label_of = semantic_label_of(categories)
    labels = digest(VERSION, label_of)
    works = [
        Work(
            key=image.semantic_name,
            recipe=digest(labels, [[s["id"], s["category_id"]] for s in image.segments]),
            inputs=(pngs / image.png_name,),
            output=output / image.semantic_name,
        )
        for image in content.images
    ]
    journal = Journal(coco, output.name)
    convert = partial(_convert, pngs=pngs, label_of=label_of)
    journal.do(convert, content.images, works, output.name, workers)
    journal.publish()
    journal.finish()
    own_pngs = coco / f"panoptic_{split}"
    if not own_pngs.exists():
        own_pngs.symlink_to(pngs.name)
    return output


def _convert(
    image: AnnotatedImage, output: Path, pngs: Path, label_of: dict[int, int]
) -> tuple[list[str], str]:
    """Write one semantic PNG; what is wrong with the panoptic PNG, if anything is."""
    try:
        write_semantic_png(pngs / image.png_name, image.segments, label_of, output)
    except (FileNotFoundError, ValueError) as error:
        return [str(error)], ""
    return [], ""
