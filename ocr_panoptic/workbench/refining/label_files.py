"""Refinement of label PNGs, whichever program wrote them."""

from collections import defaultdict
from pathlib import Path, PurePath

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.labels import read_label_image, write_label_png
from ocr_panoptic.formats.offsets import moved, source_pixels
from ocr_panoptic.progress import with_progress

from .offset_sources import Offsets


def refine_labels(folder: Path, output: Path, offsets: Offsets, scale: int) -> int:
    """
    Refine every label PNG in or below a folder: each pixel takes the label at its offset.

    Args:
        output: folder of the refined PNGs.
        scale: factor on the offsets.

    Returns:
        number of images
    """
    if folder.resolve() in (output.resolve(), *output.resolve().parents):
        raise UserError(
            f"--output {output} is {folder} or lies in it; choose another folder, so that the "
            "predictions are kept"
        )
    files = sorted(folder.rglob("*.png"))
    if not files:
        raise MissingFileError(f"--predictions {folder}: not a folder with label PNGs")
    by_last = defaultdict(list)
    for name in offsets.entries:
        by_last[PurePath(name).name].append(name)
    own: dict[Path, str] = {}
    missing = []
    for file in files:
        name = file.relative_to(folder).with_suffix("").as_posix()
        known = [name] if name in offsets.entries else by_last[file.stem]
        if len(known) == 1:
            own[file] = known[0]
        else:
            missing.append(name)
    if missing:
        raise UserError(
            f"{len(missing)} of {len(files)} predictions do not match exactly one image "
            f"with offsets by name: {first_few(missing)}. These images are {len(offsets.entries)}: "
            f"{first_few(sorted(offsets.entries)) or 'none'}."
        )
    for file, name in with_progress(own.items(), "refine"):
        try:
            found = offsets.of(offsets.entries[name])
            refined = moved(read_label_image(file), source_pixels(found, scale))
        except ValueError as error:
            raise UserError(f"{file}: {error}") from error
        write_label_png(output / file.relative_to(folder), refined)
    return len(files)
