"""The files of an image that a panoptic model sees in tiles: what is found in all of its rows is
kept in a file until it is known which segments are one."""

import logging
from contextlib import ExitStack

import numpy as np
from tqdm import tqdm

from ocr_panoptic.formats.coco_panoptic import id2rgb
from ocr_panoptic.formats.files import replacing
from ocr_panoptic.visualization.overlays import segment_colors

from .inputs import Item
from .outputs import ROWS_AT_ONCE, Overlay, Record, Writer, eight_bits, write_jpeg
from .rows import KeptRows, PngRows
from .tiles import Joined, PanopticTiles

logger = logging.getLogger(__name__)


def write_tiles(writer: Writer, item: Item, tiles: PanopticTiles) -> Record:
    """
    Write the files of :meth:`.Writer.write`, each whole or not at all. Of an image that is larger
    than OVERLAY_PIXELS the overlay is smaller.

    Returns:
        its record

    Raises:
        OSError: a file cannot be written.
    """
    classes, paths, size = writer.classes, writer.paths(item), tiles.size
    overlay = Overlay(size, np.int32) if "overlays" in paths else None
    instances = []
    with ExitStack() as stack:
        enter = stack.enter_context
        new = {kind: enter(replacing(paths[kind])) for kind in ("labels", "confidence", "panoptic")}
        kept = enter(KeptRows(writer.folder))
        bar = enter(tqdm(total=size[0], desc=item.name, unit="row", leave=False))
        with PngRows(new["labels"], *size, classes.labels.dtype) as labels_png:
            for band in tiles.bands():
                if overlay is not None:
                    overlay.add(writer.rgb(band.image), band.ids)
                for top in range(0, len(band.ids), ROWS_AT_ONCE):
                    rows = slice(top, top + ROWS_AT_ONCE)
                    labels_png.write(classes.labels[band.labels[rows]])
                    kept.write(band.ids[rows], eight_bits(band.confidence[rows]))
                    bar.update(len(band.ids[rows]))
                instances += band.instances
        joined = tiles.joined()
        scores = np.where(joined.scores < 0, -1, 255 * joined.scores).round().astype(np.int16)
        with (
            PngRows(new["panoptic"], *size, np.uint8, is_grey=False) as ids_png,
            PngRows(new["confidence"], *size, np.uint8) as confidence_png,
        ):
            rows = kept.read()
            for ids, confidence in zip(rows, rows):  # in turn
                ids_png.write(id2rgb(joined.segment_of[ids]))
                known = scores[ids]
                confidence_png.write(np.where(known < 0, confidence, known).astype(np.uint8))
    if overlay is not None:
        colors = segment_colors(joined.segments, classes.thing_colors, classes.colors)
        write_jpeg(paths["overlays"], overlay.draw(colors, joined.segment_of))
    if joined.cut:
        logger.warning(
            "%s: %d of %d things lie in no tile of TEST.SLIDING_WINDOW as a whole. Joined from "
            "parts, they may be incomplete, or several: set a larger SIZE, and SIZE - STRIDE as "
            "large as the things.",
            item.source,
            joined.cut,
            sum(segment["isthing"] for segment in joined.segments),
        )
    content = {"segments": _segments(writer, joined), "instances": instances}
    for result in instances:
        result["category_id"] = classes.thing_ids[result["category_id"]]
    return writer.record(item, *size, content)


def _segments(writer: Writer, joined: Joined) -> list[dict]:
    """Return ``segments_info`` of COCO panoptic format, with "score" and "confidence"."""
    segments = []
    for segment in joined.segments:
        known = dict(segment)
        ids = writer.classes.thing_ids if known.pop("isthing") else writer.classes.stuff_ids
        segments.append({**known, "category_id": ids[segment["category_id"]], "iscrowd": 0})
    return segments
