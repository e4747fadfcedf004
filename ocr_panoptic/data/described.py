"""Read the splits that data files describe, without importing PyTorch."""

from collections.abc import Collection, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import as_list

from .data_file import DataFile, DataFiles, PanopticSplit, read_data_file
from .faults import DataFaults, first_few, gathering, raise_if_any, repeated
from .panoptic.source import PanopticSource
from .semantic.label_space import LabelSpace, parse_label_space, read_class_file
from .semantic.records import SemanticSource


class Described(NamedTuple):
    file: DataFile
    source: PanopticSource | SemanticSource
    metadata: dict


def read_described(
    files: DataFiles,
    wanted: Collection[str] | None = None,
    classes: Mapping[str, Any] | None = None,
) -> tuple[list[str], dict[str, Described]]:
    """
    Read data files, and check that the splits of each file have the same classes.

    Args:
        wanted: names ``<name>_<split>`` of the splits to read; None reads all splits.
        classes: metadata of a trained model, whose class order is used if the names are the same.

    Returns:
        the names of all splits, wanted or not; and the wanted splits by name
    """
    read = list(map(read_data_file, as_list(files)))
    names = [file.data_set(split) for file in read for split in file.splits]
    if twice := sorted(name for name, _ in repeated(names)):
        raise UserError(f"{', '.join(twice)}: two data files describe it. Rename one.")
    found: dict[str, Described] = {}
    faults: list[str] = []
    for file in read:
        used = {}
        for split in file.splits:
            name, paths = file.data_set(split), file.splits[split]
            if wanted is None or name in wanted:
                with gathering(faults):
                    source = (
                        PanopticSource(name, paths, file.channels)
                        if isinstance(paths, PanopticSplit)
                        else SemanticSource(name, paths, label_space(file), file.channels)
                    )
                    source = source.ordered_as(classes) if classes else source
                    used[name] = Described(file, source, source.metadata())
        with gathering(faults):
            compare_classes({name: (file.path, split.metadata) for name, split in used.items()})
        found |= used
    raise_if_any(faults)
    return names, found


def label_space(file: DataFile) -> LabelSpace:
    """Return the label space that a semantic data file, or the class file it names, defines."""
    classes = file.classes["classes"]
    if not isinstance(classes, str):
        return parse_label_space(file.classes, str(file.path))
    if len(file.classes) > 1:
        raise DataFaults([f"{file.path}: ignore and flip_pairs belong into {classes}."])
    return read_class_file(Path(classes))


def compare_classes(found: Mapping[str, tuple[Path, Mapping]]) -> None:
    """
    Raise DataFaults unless all data sets have the same class names in the same order.

    ``found`` maps the name of each data set to its data file and its metadata.
    """
    faults = []
    first, *others = found or [""]
    for name in others:
        for kind in ("thing", "stuff"):
            classes = (found[n][1].get(f"{kind}_classes", ()) for n in (first, name))
            different = [
                f"{ours!r} and {theirs!r}"
                for ours, theirs in zip_longest(*classes, fillvalue="none")
                if ours != theirs
            ]
            if different:
                faults.append(
                    f"{found[name][0]}: {name} has other {kind} classes than {first} of "
                    f"{found[first][0]} ({first_few(different)}). Data that are used together must "
                    "have the same classes, in the same order of ids."
                )
    raise_if_any(faults)
