"""Records in a file beside the JSON that they were made from, from which a training starts at once.

Detectron2 parses the JSONs, makes the records of all images, tests and counts them, and pickles
each, in every process and at every start. Here that is done once. The file holds a line of JSON for
each record, which is parsed when its image is loaded, and then an index:

    {"file_name": ...}
    ...
    {"key": ..., "ends": [...], ...}
    the index's place in the file, 20 digits, and its checksum

Each record has a checksum in the index. The file is mapped into memory, which all processes of a
machine share. JSON runs no code.
"""

import glob
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import detectron2
import numpy as np
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.build import print_instances_class_histogram
from detectron2.data.detection_utils import check_metadata_consistency
from detectron2.structures import BoxMode
from torch.utils.data import Dataset

from ocr_panoptic.files import locked, replacing

from .collection import collection_paused
from .fingerprint import file_digest, file_state

logger = logging.getLogger(__name__)

VERSION = 2
PLACE_DIGITS, SUM_DIGITS = 20, 8
END = PLACE_DIGITS + 1 + SUM_DIGITS


class RecordSource(NamedTuple):
    """A loader, for :func:`register`, whose records follow from files.

    Attributes:
        records: makes the records.
        recipe: all that they follow from besides the content of ``files``; JSON can hold it.
        files: the first of them has the pack beside it.
    """

    records: Callable[[], Iterable[dict]]
    recipe: Any
    files: tuple[Path, ...]

    def __call__(self) -> list[dict]:
        return list(self.records())


class Pack(NamedTuple):
    """Records of one data set.

    Attributes:
        path: of the file.
        lines: uint8, the file as far as its records go.
        ends: int64 [N], where the line of each ends.
        sums: int64 [N], the CRC-32 of each.
        wide: bool [N], the image is wider than high.
        usable: bool [N], an annotation of it is no crowd.
        instances: of each class, crowds not counted.
    """

    path: Path
    lines: np.ndarray
    ends: np.ndarray
    sums: np.ndarray
    wide: np.ndarray
    usable: np.ndarray
    instances: dict[int, int]

    def record(self, place: int) -> dict:
        """
        Raises:
            ValueError: the file has been damaged.
        """
        start = self.ends[place - 1] if place else 0
        line = self.lines[start : self.ends[place]].tobytes()
        if crc32(line) != self.sums[place]:
            raise ValueError(f"{self.path}: is damaged. Remove it: it is made anew.")
        return _decoded(line)


class PackedRecords(Dataset):
    """Records of packs, one after the other.

    Args:
        usable: without images that have no annotation but crowds.

    Attributes:
        wide: bool [N], the image is wider than high.
    """

    def __init__(self, packs: Sequence[Pack], usable: bool):
        self.packs = packs
        kept = [np.flatnonzero(pack.usable | (not usable)) for pack in packs]
        self._pack = np.repeat(np.arange(len(packs)), [len(places) for places in kept])
        self._place = np.concatenate(kept)
        self.wide = np.concatenate([p.wide[places] for p, places in zip(packs, kept, strict=True)])

    def __len__(self) -> int:
        return len(self._place)

    def __getitem__(self, index: int) -> dict:
        return self.packs[self._pack[index]].record(self._place[index])


def packed_records(names: Sequence[str], usable: bool) -> PackedRecords | None:
    """
    The records that ``get_detection_dataset_dicts(names, usable)`` returns, after the same checks
    and tables. Packs that are missing, or not of the files as they are now, are written.

    Returns:
        None where the records of a data set do not follow from files alone, where these are
        missing (its loader says so), or where the folder of its JSON cannot be written to.

    Raises:
        FileNotFoundError, ValueError: of the data set's loader; ValueError also for files that
            change while they are read.
    """
    sources = [record_source(name) for name in names]
    if not sources or None in sources:
        return None
    packs = [_pack_of(name, source) for name, source in zip(names, sources, strict=True)]
    if not all(packs):
        return None
    records = PackedRecords(packs, usable)
    left_out = sum(len(pack.ends) for pack in packs) - len(records)
    if left_out:
        logger.info(
            f"Left out {left_out} images with no annotation but crowds, {len(records)} left"
        )
    if not len(records):
        raise ValueError(
            f"{', '.join(names)}: no image has an instance that is no crowd. "
            "DATALOADER.FILTER_EMPTY_ANNOTATIONS False uses them all the same."
        )
    check_metadata_consistency("thing_classes", names)
    instances = sum((Counter(pack.instances) for pack in packs), Counter())
    annotations = [repeat({"category_id": label}, times) for label, times in instances.items()]
    print_instances_class_histogram(
        [{"annotations": list(chain.from_iterable(annotations))}],
        MetadataCatalog.get(names[0]).thing_classes,
    )
    return records


def record_source(name: str) -> RecordSource | None:
    """That of a data set; None where its records follow from more than files."""
    if name not in DatasetCatalog:
        return None
    load = DatasetCatalog[name]
    if isinstance(load, RecordSource):
        return load
    metadata = MetadataCatalog.get(name)
    of_detectron2 = getattr(load, "__module__", "") == "detectron2.data.datasets.coco_panoptic"
    if not of_detectron2 or not name.endswith("_panoptic_separated"):
        return None
    folders = metadata.image_root, metadata.sem_seg_root
    if not all(map(os.path.exists, (metadata.json_file, *folders))):
        return None  # the loader says what is missing
    # It lists the folders, whose times change with their lists.
    recipe = [[folder, os.stat(folder).st_mtime_ns] for folder in folders]
    return RecordSource(load, recipe, (Path(metadata.json_file),))


def pack_file(name: str, source: RecordSource) -> Path:
    """Where the pack of a data set lies."""
    return source.files[0].parent / f".{name}.records"


def _pack_of(name: str, source: RecordSource) -> Pack | None:
    if not all(map(file_state, source.files)):
        return None  # the loader says what is missing
    path = pack_file(name, source)
    pack = _read(path, source)
    if pack is not None:
        return pack
    try:
        # One process packs; the others wait for it, and read.
        with locked(path.with_name(f"{path.name}.lock"), wait=True):
            pack = _read(path, source)
            if pack is None:
                logger.info(
                    f"Packing the records of {name} into {path}, for this start and later ones"
                )
                _write(path, source)
                pack = _read(path, source)
    except OSError as error:
        logger.warning(f"Every start reads all of {name} anew, it cannot be packed: {error}")
    return pack


@collection_paused()
def _write(path: Path, source: RecordSource) -> None:
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        unfinished.unlink()  # its process was killed
    states = [file_state(file) for file in source.files]
    ends, sums, wide, usable, instances = [], [], [], [], Counter()
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for record in source.records():
            line = _encoded(record)
            file.write(line)
            sums.append(crc32(line))
            ends.append(file.tell())
            wide.append(int(record["width"] > record["height"]))
            real = [a["category_id"] for a in record["annotations"] if not a.get("iscrowd", 0)]
            usable.append(int(bool(real)))
            instances.update(real)
        index = {
            "key": [VERSION, detectron2.__version__, source.recipe],
            "states": states,
            "digests": [file_digest(file) for file in source.files],
            "ends": ends,
            "sums": sums,
            "wide": wide,
            "usable": usable,
            "instances": list(instances.items()),
        }
        if [file_state(file) for file in source.files] != states:
            raise ValueError(
                f"{source.files[0]}: this or what belongs to it has changed while it was read. "
                "Start again when its preparation has come to its end."
            )
        place, index = file.tell(), json.dumps(index).encode() + b"\n"
        file.write(index + b"%0*d %0*x" % (PLACE_DIGITS, place, SUM_DIGITS, crc32(index)))


def _read(path: Path, source: RecordSource) -> Pack | None:
    """The pack of a file; None where there is none, or none of the source as it is now."""
    if file_state(path) is None:
        return None
    try:
        with open(path, "rb") as file:
            file.seek(-END, os.SEEK_END)
            place, checksum = file.read().split()
            file.seek(int(place))
            index = file.read()[:-END]
            if crc32(index) != int(checksum, 16):
                return None
            lines = np.memmap(file, np.uint8, "r", shape=(int(place),))
        index = json.loads(index)
        if index["key"] != json.loads(json.dumps([VERSION, detectron2.__version__, source.recipe])):
            return None
        states = [list(file_state(file) or ()) for file in source.files]
        # Other times with the same content are those of a copy.
        if states != index["states"] and index["digests"] != list(map(file_digest, source.files)):
            return None
        return Pack(
            path,
            lines,
            np.array(index["ends"], np.int64),
            np.array(index["sums"], np.int64),
            np.array(index["wide"], bool),
            np.array(index["usable"], bool),
            dict(index["instances"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _encoded(record: dict) -> bytes:
    return json.dumps(record, default=_bytes_as_json, separators=(",", ":")).encode() + b"\n"


def _bytes_as_json(value: object) -> dict:
    if isinstance(value, bytes):  # compressed RLE of pycocotools
        return {"bytes": value.decode("latin-1")}
    raise TypeError(f"A record holds {value!r}, which JSON cannot")


def _decoded(line: bytes) -> dict:
    record = json.loads(line)
    for annotation in record["annotations"]:
        annotation["bbox_mode"] = BoxMode(annotation["bbox_mode"])
        mask = annotation.get("segmentation")
        if isinstance(mask, dict) and isinstance(mask["counts"], dict):
            mask["counts"] = mask["counts"]["bytes"].encode("latin-1")
    return record
