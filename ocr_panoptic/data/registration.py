"""Data files as registered data sets of Detectron2."""

from collections.abc import Collection, Sequence
from itertools import zip_longest
from pathlib import Path

from detectron2.data import MetadataCatalog

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import as_list

from .data_file import DataFile, DataFiles, files_below_root, read_data_file
from .faults import DataFaults, first_few, gathering, raise_if_any
from .panoptic.source import PanopticSource
from .register import is_foreign, origin, register
from .semantic.label_space import LabelSpace, parse_label_space, read_class_file
from .semantic.source import SemanticSource


def register_data_files(files: DataFiles, wanted: Collection[str] | None = None) -> list[str]:
    """Register the splits of data files as ``<name>_<split>``, in place of former ones.

    Args:
        files: one data file or several.
        wanted: names in use; other splits are left alone, whatever is wrong with them. By default
            all are registered.

    Returns:
        names of all splits that the files describe, in use or not.

    Raises:
        FileNotFoundError, ValueError, DataFaults: as :func:`read_data_file`; the folders, JSONs or
            classes of the splits in use are missing or have faults; the classes of one file's
            splits differ; two have one name, or one that Detectron2 or other code has registered.
    """
    described = list(map(read_data_file, as_list(files)))
    names = [file.data_set(split) for file in described for split in file.splits]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{', '.join(twice)}: two data files describe it. Rename one of them.")
    faults: list[str] = []
    for file in described:
        used = []
        for split in file.splits:
            if wanted is None or file.data_set(split) in wanted:
                with gathering(faults):
                    _register_split(file, split)
                    used.append(file.data_set(split))
        with gathering(faults):
            check_same_classes(used)
    raise_if_any(faults)
    return names


def register_in_use(files: DataFiles, wanted: Collection[str]) -> list[str]:
    """:func:`register_data_files`, and of names that these do not describe the data files
    ``$DETECTRON2_DATASETS/*/<name>.yaml``."""
    names = register_data_files(files, wanted)
    rest = [name for name in wanted if name not in names and not is_foreign(name)]
    return [*names, *register_data_files(files_below_root(rest), rest)]


def _register_split(file: DataFile, split: str) -> None:
    name, paths = file.data_set(split), file.splits[split]
    if file.kind == "panoptic":
        source = PanopticSource(name, paths, file.channels)
    else:
        source = SemanticSource(name, paths, label_space(file), file.channels)
    register(name, file.path, source, source.metadata(), vars(paths).values())


def label_space(file: DataFile) -> LabelSpace:
    """Return the classes of semantic data."""
    classes = file.classes["classes"]
    if not isinstance(classes, str):
        return parse_label_space(file.classes, str(file.path))
    if len(file.classes) > 1:
        raise DataFaults([f"{file.path}: ignore and flip_pairs belong into {classes}."])
    return read_class_file(Path(classes))


def check_same_classes(names: Sequence[str]) -> None:
    """Compare the classes of data sets that data files describe, of which one model is to be
    trained or evaluated; ids and colours may differ.

    Raises:
        DataFaults: they differ.
    """
    faults = []
    for name in names[1:]:
        for kind in ("thing", "stuff"):
            classes = (MetadataCatalog.get(n).get(f"{kind}_classes", ()) for n in (names[0], name))
            different = [
                f"{ours!r} and {theirs!r}"
                for ours, theirs in zip_longest(*classes, fillvalue="none")
                if ours != theirs
            ]
            if different:
                files = [str(origin(n)) for n in (names[0], name)]
                faults.append(
                    f"{files[1]}: {name} has other {kind} classes than {names[0]} of {files[0]} "
                    f"({first_few(different)}). Data that are used together must have the same "
                    "classes, in the same order of ids."
                )
    raise_if_any(faults)
