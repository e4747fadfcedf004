"""Kinds of classes: things, stuff, and void."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import yaml

from ocr_panoptic.data.classes import VOID_LABEL, derived_color, faults_of_class
from ocr_panoptic.data.faults import DataFaults, raise_if_any, repeated
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.pictures import Color
from ocr_panoptic.formats.yaml_file import read_yaml

from .annotated_image import AnnotatedImage

_KEYS = ("things", "stuff", "ignore", "colors")
MAX_SHOWN = 300  # classes in a message


@dataclass(frozen=True)
class Kinds:
    """
    Attributes:
        things, stuff: names of classes, in the order of the data set's.
        ignore: names of classes that are void.
        colors: of some of them.
    """

    things: tuple[str, ...] = ()
    stuff: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    colors: Mapping[str, Color] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.things + self.stuff

    def color(self, name: str) -> Color:
        return self.colors.get(name, derived_color(self.classes.index(name)))


def read_kinds(path: Path) -> Kinds:
    """Read a YAML file: ``things``, ``stuff`` and ``ignore``, each a list of names, and ``colors``,
    name -> [R, G, B]. Each may be absent.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no YAML.
        DataFaults: it cannot be used; every reason is named.
    """
    if not path.is_file():
        raise MissingFileError(f"{path}: file of things and stuff not found, or no regular file.")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise DataFaults([f"{path}: expected things: and stuff:, each with a list of names."])
    faults = [
        f"unknown key {key!r}; there are {', '.join(_KEYS)}." for key in content if key not in _KEYS
    ]
    lists = {}
    for key in _KEYS[:3]:
        lists[key] = content.get(key) or []
        if not isinstance(lists[key], list):
            faults.append(f"{key} must be a list of names, found {lists[key]!r}.")
            lists[key] = []
    names = [name for listed in lists.values() for name in listed]
    for name in names:
        faults += [f"class {name!r}: {fault}" for fault in faults_of_class(name, [0, 0, 0])]
    faults += [f"class {n!r} comes {times} times." for n, times in repeated(map(str, names))]
    colors = content.get("colors") or {}
    if not isinstance(colors, dict):
        faults.append(f"colors must be a mapping of names to [R, G, B], found {colors!r}.")
        colors = {}
    for name, color in colors.items():
        faults += [f"colors: {name!r}: {fault}" for fault in faults_of_class(name, color)]
        if name not in names:
            faults.append(f"colors: {name!r} is in no list.")
    raise_if_any([f"{path}: {fault}" for fault in faults])
    given = {name: tuple(color) for name, color in colors.items()}
    return Kinds(*map(tuple, lists.values()), given)


@dataclass
class ClassCount:
    """The numbers of images and segments in which a class was found.

    Attributes:
        images: that show it.
        segments: by what their ``instance`` says, crowds as objects.
        crowds: how many of them are marked as crowds.
        several: the first image with more than one of these, and their number.
        is_doubtful: see :attr:`.Segment.is_doubtful`.
    """

    images: int = 0
    segments: Counter = field(default_factory=Counter)
    crowds: int = 0
    several: tuple[str, int] | None = None
    is_doubtful: bool = False

    @property
    def kind(self) -> str | None:
        """ "thing" where some segments are objects, and the others regions; "stuff" where all are
        regions; None where the format does not tell it."""
        if None in self.segments:
            return None
        return "thing" if True in self.segments else "stuff"


def add_classes(found: dict[str, ClassCount], image: AnnotatedImage) -> None:
    """Count those of one image, too."""
    crowds: Counter[str] = Counter()
    for segment in image.segments:
        count = found.setdefault(segment.label, ClassCount())
        count.segments[True if segment.is_crowd else segment.instance] += 1
        count.is_doubtful |= segment.is_doubtful
        crowds[segment.label] += segment.is_crowd
    for name, times in crowds.items():
        found[name].images += 1
        found[name].crowds += times
        if times > 1 and found[name].several is None:
            found[name].several = image.name, times


def check_crowds(found: Mapping[str, ClassCount]) -> None:
    """
    Raises:
        ValueError: crowds may be objects: an image has two of a class, or a class nothing else, or
            what makes them crowds is a tool's habit. COCO's own annotations have none of it.
    """
    objects = {name: count.segments[True] + count.segments[None] for name, count in found.items()}
    reasons = [
        f"{count.several[1]} of class {name!r} in {count.several[0]}"
        for name, count in found.items()
        if count.several
    ]
    reasons += [
        f"all {count.crowds} of class {name!r}"
        for name, count in found.items()
        if count.crowds and count.crowds == objects[name]
    ]
    if any(count.is_doubtful for count in found.values()):
        reasons.append("each a mask, where all others are single polygons")
    if reasons:
        raise UserError(
            f"{sum(c.crowds for c in found.values())} of {sum(objects.values())} objects are "
            f"marked as crowds (iscrowd 1), {reasons[0]}. CVAT and Datumaro mark each mask so, V7 "
            "and supervision objects with holes or in several parts. Give --crowds objects if each "
            "is an object, --crowds groups if each is a group of objects that are not told apart."
        )


def resolve_kinds(
    found: Mapping[str, ClassCount],
    given: Kinds | None,
    default: Kinds | None,
    rest: str | None,
    semantic: bool = False,
) -> Kinds:
    """Return what each class is: as the user says; else as the format's own list; else as the
    segments do.

    Args:
        found: the classes of the annotations.
        given: the user's, or None.
        default: the format's, or None. It counts where it names all classes.
        rest: a class of stuff besides, or None.
        semantic: no class needs a kind, all may be stuff.

    Raises:
        DataFaults: classes that are missing from ``given``.
        ValueError: nothing says what some classes are; the message has the YAML to write.
    """
    if given is not None:
        raise_if_any(list(_missing(found, given, rest)))
        return given
    if default is not None and found.keys() <= {*default.classes, *default.ignore}:
        return _with_rest(default, rest)
    if semantic:
        return _with_rest(Kinds(stuff=tuple(name for name in found if name != rest)), rest)
    kinds = {name: count.kind for name, count in found.items()}
    if rest in kinds:
        kinds[rest] = kinds[rest] or "stuff"
    if None in kinds.values():
        raise UserError(_unknown_kinds(found, rest))
    return _with_rest(
        Kinds(*(tuple(n for n, k in kinds.items() if k == kind) for kind in ("thing", "stuff"))),
        rest,
    )


def _with_rest(kinds: Kinds, rest: str | None) -> Kinds:
    if rest is None or rest in kinds.stuff:
        return kinds
    if rest in kinds.things or rest in kinds.ignore:
        raise UserError(f"--rest {rest}: is no class of stuff. Name another class.")
    return Kinds(kinds.things, (*kinds.stuff, rest), kinds.ignore, kinds.colors)


def _missing(found: Mapping[str, ClassCount], given: Kinds, rest: str | None) -> Iterator[str]:
    listed = (*given.classes, *given.ignore)
    for name, count in found.items():
        if name not in listed:
            close = get_close_matches(name, [n for n in listed if n not in found], n=1)
            hint = f" It has {close[0]!r}, which no annotation has." if close else ""
            yield (
                f"class {name!r} ({sum(count.segments.values())} segments in {count.images} "
                f"images) is in none of the lists of --things: add it to things, stuff or ignore."
                f"{hint}"
            )
    if rest is not None and rest not in given.stuff:
        yield f"--rest {rest}: is not in the list stuff of --things: add it there."


def _unknown_kinds(found: Mapping[str, ClassCount], rest: str | None) -> str:
    """The message that asks for a file of things and stuff."""
    rows = [
        f"  {name}: {sum(count.segments.values())} segments in {count.images} images"
        + (f", the annotations say {count.kind}" if count.kind else "")
        for name, count in found.items()
    ]
    names = {kind: [n for n, c in found.items() if c.kind == kind] for kind in ("stuff", None)}
    names["stuff"] += [rest] if rest and rest not in names["stuff"] else []
    things = [name for name in found if name not in names["stuff"]]
    content = {"things": things, "stuff": names["stuff"], "ignore": []}
    text = yaml.safe_dump(
        content, default_flow_style=None, sort_keys=False, width=90, allow_unicode=True
    )
    return "\n".join(
        [
            "The annotations do not say which of their classes are things (objects to count) and "
            "which are stuff (regions). They have:",
            *rows[:MAX_SHOWN],
            *([f"  and {len(rows) - MAX_SHOWN} others"] if len(rows) > MAX_SHOWN else []),
            "Write a file and give it as --things; move what is stuff, and what is to be void "
            "(ignore):",
            *(f"  {line}" for line in text.splitlines()),
        ]
    )


def check_classes(kinds: Kinds, semantic: bool) -> None:
    """
    Raises:
        ValueError: there are too few or too many of them.
    """
    if not kinds.classes:
        raise UserError("There is no class: all are ignored, or no image has a segment.")
    if semantic:
        if len(kinds.classes) == 1:
            raise UserError(
                f"{kinds.classes[0]!r} is the only class; name another for the other pixels, such "
                "as --rest background."
            )
        if len(kinds.classes) > VOID_LABEL:
            raise UserError(f"{len(kinds.classes)} classes, at most {VOID_LABEL} fit label PNGs.")
        return
    if not kinds.things:
        raise UserError(
            "No class is a thing, and Panoptic-FPN needs one: list things in --things, or import "
            "with --semantic."
        )
    if len(kinds.stuff) >= VOID_LABEL:
        raise UserError(
            f"{len(kinds.stuff)} classes of stuff, at most {VOID_LABEL - 1} fit semantic PNGs."
        )
