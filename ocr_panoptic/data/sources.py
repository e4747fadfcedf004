"""Read the splits that data files describe, without importing PyTorch."""

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from ocr_panoptic.errors import UserError

from .data_file import DataFile, PanopticSplit
from .faults import DataFaults, first_few, gathering, raise_if_any, repeated
from .panoptic.source import PanopticSource
from .semantic.label_space import LabelSpace, parse_label_space, read_class_file
from .semantic.records import SemanticSource


class DataSet(NamedTuple):
    """A split of a data file: what reads its records, and its metadata."""

    file: DataFile
    source: PanopticSource | SemanticSource
    metadata: dict


def read_data_sets(
    files: Sequence[DataFile],
    wanted: Collection[str] | None = None,
    classes: Mapping[str, Any] | None = None,
    *,
    same_classes: bool = False,
) -> dict[str, DataSet]:
    """
    Read the splits of data files, and check that the splits of each file have the same classes.

    Args:
        wanted: names ``<name>_<split>`` of the splits to read; None reads all splits.
        classes: metadata of a trained model; data whose class names are all among the model's get
            the model's classes, in its order.
        same_classes: whether all splits of all files must have the same classes.

    Returns:
        dict from the name of each split to its data set
    """
    names = [name for file in files for name in file.data_sets()]
    if twice := sorted(name for name, _ in repeated(names)):
        raise UserError(
            f"Several data files describe {', '.join(twice)}. Give each data file its own name "
            "(its key name)."
        )
    data_sets: dict[str, DataSet] = {}
    faults: list[str] = []
    for file in files:
        of_file = {}
        for split in file.splits:
            name, paths = file.data_set(split), file.splits[split]
            if wanted is None or name in wanted:
                with gathering(faults):
                    source = (
                        PanopticSource(name, paths, file.channels)
                        if isinstance(paths, PanopticSplit)
                        else SemanticSource(name, paths, label_space(file), file.channels)
                    )
                    source = source.with_classes(classes) if classes else source
                    of_file[name] = DataSet(file, source, source.metadata())
        with gathering(faults):
            _compare_classes(of_file)
        data_sets |= of_file
    raise_if_any(faults)
    if same_classes:
        _compare_classes(data_sets)
    return data_sets


def label_space(file: DataFile) -> LabelSpace:
    """Return the classes and label map in a semantic data file, or in the class file it names."""
    classes = file.classes["classes"]
    if not isinstance(classes, str):
        return parse_label_space(file.classes, str(file.path))
    if len(file.classes) > 1:
        fault = "the keys ignore and flip_pairs must be in the class file"
        raise DataFaults([f"{file.path}: {fault}. Move them to {classes}."])
    return read_class_file(Path(classes))


def _compare_classes(data_sets: Mapping[str, DataSet]) -> None:
    """Raise DataFaults unless all data sets have the same class names in the same order."""
    faults = []
    first, *others = data_sets or [""]
    for name in others:
        for kind in ("thing", "stuff"):
            classes = (data_sets[n].metadata.get(f"{kind}_classes", ()) for n in (first, name))
            different = [
                f"{ours!r} and {theirs!r}"
                for ours, theirs in zip_longest(*classes, fillvalue="(no class)")
                if ours != theirs
            ]
            if different:
                faults.append(
                    f"{data_sets[name].file.path}: the {kind} classes of {first} "
                    f"({data_sets[first].file.path}) and {name} differ: {first_few(different)}. "
                    "Data that are used together must have the same classes, in the same order."
                )
    raise_if_any(faults)
