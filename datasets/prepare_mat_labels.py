#!/usr/bin/env python
"""
Write the label PNGs of PASCAL-Context or COCO-Stuff 10k from their MATLAB files.

$DETECTRON2_DATASETS must be laid out as docs/published_data.md shows. SciPy must be installed. The
PNGs keep the raw labels; reading them applies the data set's label map.

In shapes, H and W are the size of the image.
"""

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

from ocr_panoptic.data.faults import faults_listed, raise_if_any
from ocr_panoptic.data.places import datasets_root
from ocr_panoptic.data.published import tables
from ocr_panoptic.data.semantic.label_space import LabelSpace
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.labels import apply_label_map, write_label_png
from ocr_panoptic.formats.offsets import read_variable
from ocr_panoptic.formats.pictures import header_size
from ocr_panoptic.progress import imap_with_progress


@dataclass(frozen=True)
class MatRelease:
    """
    A published data set whose labels are MATLAB files.

    Paths are relative to Detectron2's folder of data sets.

    Attributes:
        images, mats: folders of the images ``<name>.jpg`` and of the labels ``<name>.mat``.
        labels: folder for the written labels, ``<split>/<name>.png``.
        splits: text file of each split, with one image name per line.
        key: name of the variable that holds the labels [H, W] in the MATLAB files.
        space: label space; its label map must contain every raw label of the MATLAB files.
        hint: advice for the user if a file or folder is missing.
    """

    images: Path
    mats: Path
    labels: Path
    splits: dict[str, Path]
    key: str
    space: LabelSpace
    hint: str


PASCAL_CONTEXT = MatRelease(
    images=Path("VOC2010/JPEGImages"),
    mats=Path("pascal_context/trainval"),
    labels=Path("pascal_context/labels"),
    splits={split: Path(f"VOC2010/ImageSets/Main/{split}.txt") for split in ("train", "val")},
    key="LabelMap",
    space=tables.pascal_context(with_background=True),
    hint="Unpack VOCtrainval_03-May-2010.tar and PASCAL-Context's trainval.tar.gz as "
    "docs/published_data.md shows.",
)
COCO_STUFF_10K = MatRelease(
    images=Path("coco_stuff_10k/images"),
    mats=Path("coco_stuff_10k/annotations"),
    labels=Path("coco_stuff_10k/labels"),
    splits={split: Path(f"coco_stuff_10k/imageLists/{split}.txt") for split in ("train", "test")},
    key="S",
    space=tables.coco_stuff(offset=0, unlabelled=0),
    hint="Unpack cocostuff-10k-v1.1.zip into coco_stuff_10k/. Version 1.0 has different labels.",
)
MAT_RELEASES = {"pascal_context": PASCAL_CONTEXT, "coco_stuff_10k": COCO_STUFF_10K}


def prepare_mat_release(release: MatRelease, root: Path, workers: int | None = None) -> list[Path]:
    """
    Write the label PNGs of a release; running it again writes identical files.

    Args:
        root: Detectron2's folder of data sets.
        workers: number of processes; by default the number of cores, at most 8.

    Returns:
        folders of the written PNGs
    """
    names = {split: _names(root / path, release.hint) for split, path in release.splits.items()}
    for folder in (root / release.images, root / release.mats):
        if not folder.is_dir():
            raise MissingFileError(f"{folder}: folder not found. {release.hint}")
    faults: list[str] = []
    for split in names:
        convert = partial(convert_mat, release=release, root=root, split=split)
        messages = list(
            imap_with_progress(convert, names[split], f"{release.labels}/{split}", workers)
        )
        faults += [fault for fault in messages if fault]
    raise_if_any(faults)
    return [root / release.labels / split for split in names]


def convert_mat(name: str, release: MatRelease, root: Path, split: str) -> str | None:
    """Write the label PNG of an image; return an error message if a file is faulty, else None."""
    image, mat = root / release.images / f"{name}.jpg", root / release.mats / f"{name}.mat"
    try:
        labels = read_mat_labels(mat, release.key)
        width, height = header_size(image)[:2]
    except (OSError, ValueError) as error:
        return str(error) if str(mat) in str(error) else f"{image}: the image {error}."
    if labels.shape != (height, width):
        return (
            f"{mat}: the labels have {labels.shape[1]}x{labels.shape[0]} pixels, but the image "
            f"{image} has {width}x{height} (width x height)."
        )
    try:
        apply_label_map(labels, release.space.label_map)
    except ValueError as error:
        return f"{mat}: {error}"
    write_label_png(root / release.labels / split / f"{name}.png", labels)
    return None


def read_mat_labels(path: Path, key: str) -> np.ndarray:
    """Return the labels of a MATLAB file: uint8 [H, W], or uint16 for labels above 255."""
    labels = read_variable(path, key)
    if labels.ndim != 2 or labels.dtype.kind not in "uif" or not labels.size:
        raise UserError(
            f"{path}: expected {key!r} to be a numeric matrix, found {labels.dtype} {labels.shape}."
        )
    wide = labels.astype(np.uint16)
    if not np.array_equal(wide, labels):
        raise UserError(f"{path}: {key!r} has values that are not integers 0..65535.")
    return wide.astype(np.uint8) if wide.max() < 256 else wide


def _names(path: Path, hint: str) -> list[str]:
    if not path.is_file():
        raise MissingFileError(f"{path}: list of images not found. {hint}")
    names = path.read_text().split()
    if not names:
        raise UserError(f"{path}: the list of images is empty. {hint}")
    return names


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("release", choices=list(MAT_RELEASES))
    parser.add_argument("--workers", type=int, help="processes (default: one per core, up to 8)")
    return parser


def main(argv: list[str] | None = None) -> None:
    args = argument_parser().parse_args(argv)
    with faults_listed(datasets_root() / f"{args.release}_faults.txt"):
        folders = prepare_mat_release(MAT_RELEASES[args.release], datasets_root(), args.workers)
    print("Wrote " + ", ".join(map(str, folders)))


if __name__ == "__main__":
    from ocr_panoptic.program import run_program

    run_program(main)
