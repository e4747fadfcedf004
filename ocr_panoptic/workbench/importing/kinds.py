"""Decides which classes are things, stuff or void."""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ocr_panoptic.data.classes import VOID_LABEL, derived_color, faults_of_class
from ocr_panoptic.data.faults import first_few, raise_if_any, repeated
from ocr_panoptic.errors import UserError, did_you_mean
from ocr_panoptic.formats.files import read_yaml
from ocr_panoptic.formats.pictures import Color

from .annotated_image import AnnotatedImage

_KEYS = ("things", "stuff", "ignore", "colors")
VOID = "(void)"  # label of segments that belong to no class


@dataclass(frozen=True)
class Kinds:
    """
    The classes of a data set, divided into things, stuff and void.

    Attributes:
        ignore: names of classes whose segments become void.
        colors: colours keyed by class name; other classes get a default colour.
        others_are_stuff: whether all classes that are not listed are stuff.
    """

    things: tuple[str, ...] = ()
    stuff: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    colors: Mapping[str, Color] = field(default_factory=dict)
    others_are_stuff: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        return self.things + self.stuff

    def color(self, name: str) -> Color:
        return self.colors.get(name, derived_color(self.classes.index(name)))


def given_kinds(words: Sequence[str]) -> Kinds:
    """Return the kinds of classes that ``--things`` gives: a YAML file, or the names of things."""
    path = Path(words[0]).expanduser()
    if len(words) == 1 and (path.suffix in (".yaml", ".yml", ".json") or path.is_file()):
        return read_kinds(path)
    return Kinds(tuple(words), others_are_stuff=True)


def read_kinds(path: Path) -> Kinds:
    """
    Read the kinds of classes from a YAML file.

    Its keys are "things", "stuff" and "ignore", each with a list of names, and "colors", with a
    mapping from names to [R, G, B].
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected the keys things and stuff with lists of class names.")
    lists = [content.get(key) or [] for key in _KEYS[:3]]
    colors = content.get("colors") or {}
    if not all(isinstance(names, list) for names in lists) or not isinstance(colors, dict):
        raise UserError(
            f"{path}: things, stuff and ignore must be lists of names, and colors a mapping from "
            "names to [R, G, B]."
        )
    names = [name for listed in lists for name in listed]
    faults = [
        f"unknown key {key!r}; expected {', '.join(_KEYS)}." for key in content if key not in _KEYS
    ]
    for name in names:
        color = colors.get(name, [0, 0, 0])
        faults += [f"class {name!r}: {fault}" for fault in faults_of_class(name, color)]
    faults += [f"class {n!r} is listed {times} times." for n, times in repeated(map(str, names))]
    faults += [
        f"colors: class {name!r} is not in things, stuff or ignore."
        for name in colors
        if name not in names
    ]
    raise_if_any([f"{path}: {fault}" for fault in faults])
    things, stuff, ignore = map(tuple, lists)
    return Kinds(things, stuff, ignore, {name: tuple(color) for name, color in colors.items()})


@dataclass
class ClassCount:
    """
    How often a class occurs.

    Attributes:
        images: number of images that show the class.
        segments: numbers of objects (key True), regions (False) and segments of unknown kind
            (None); crowds count as objects.
        is_doubtful: whether segments marked as crowds may be single objects.
    """

    images: int = 0
    segments: Counter = field(default_factory=Counter)
    crowds: int = 0
    is_doubtful: bool = False

    @property
    def kind(self) -> str | None:
        """
        Return "thing" if any segment is an object, "stuff" if all segments are regions.

        If any segment is of unknown kind, return None instead.
        """
        if None in self.segments:
            return None
        return "thing" if True in self.segments else "stuff"

    @property
    def objects(self) -> int:
        return self.segments[True] + self.segments[None]


def add_classes(counts: dict[str, ClassCount], image: AnnotatedImage) -> None:
    crowds: Counter[str] = Counter()
    for segment in image.segments:
        if segment.label == VOID:
            continue
        count = counts.setdefault(segment.label, ClassCount())
        count.segments[True if segment.is_crowd else segment.instance] += 1
        count.is_doubtful |= segment.is_doubtful
        crowds[segment.label] += segment.is_crowd
    for name, times in crowds.items():
        counts[name].images += 1
        counts[name].crowds += times
        counts[name].is_doubtful |= times > 1


def check_crowds(counts: Mapping[str, ClassCount]) -> None:
    """Raise UserError if segments marked as crowds may be single objects."""
    crowds = {name: count.crowds for name, count in counts.items() if count.crowds}
    if any(
        counts[name].is_doubtful or times == counts[name].objects for name, times in crowds.items()
    ):
        raise UserError(
            f"{sum(crowds.values())} of {sum(count.objects for count in counts.values())} objects "
            f"are marked as crowds (iscrowd 1): {first_few([*crowds])}. CVAT and Datumaro mark "
            "every mask; V7 and Roboflow's supervision mark objects with holes or several parts. "
            "Give --crowds objects if each is a single object, or --crowds groups if each is a "
            "group of objects without individual masks."
        )


def resolve_kinds(
    counts: Mapping[str, ClassCount],
    given: Kinds | None,
    default: Kinds | None,
    rest: str | None,
    semantic: bool = False,
) -> Kinds:
    """
    Decide which of the classes in ``counts`` are things, stuff or void.

    If neither ``given`` nor ``default`` is used, a class with objects is a thing, and a class with
    only regions is stuff; in a semantic data set, all classes are stuff.

    Args:
        given: kinds that the user lists; they must include all classes.
        default: fixed kinds of the format, which are used if they include all classes.
        rest: stuff class for pixels without a segment; None for void.
    """
    if given is not None and given.others_are_stuff:
        raise_if_any(
            [
                f"--things {name}: the annotations have no class with this name. They have "
                f"{first_few([*counts])}. Give a class or a YAML file.{did_you_mean(name, counts)}"
                for name in given.things
                if counts and name not in counts  # some formats know no classes before reading
            ]
        )
        kinds = Kinds(given.things, tuple(n for n in counts if n not in (*given.things, rest)))
    elif given is not None:
        listed = (*given.classes, *given.ignore)
        raise_if_any(
            [
                f"class {name!r} ({sum(count.segments.values())} segments in {count.images} "
                "images) is missing from the --things file. Add it to things, stuff or "
                f"ignore.{did_you_mean(name, [n for n in listed if n not in counts])}"
                for name, count in counts.items()
                if name not in (*listed, rest)
            ]
        )
        kinds = given
    elif default is not None and counts.keys() <= {*default.classes, *default.ignore}:
        kinds = default
    elif semantic:
        kinds = Kinds(stuff=tuple(name for name in counts if name != rest))
    else:
        kind_of = {name: count.kind for name, count in counts.items()}
        if rest in kind_of:
            kind_of[rest] = "stuff"
        if None in kind_of.values():
            raise UserError(_unknown_kinds(counts, rest))
        things = tuple(name for name, kind in kind_of.items() if kind == "thing")
        kinds = Kinds(things, tuple(name for name in kind_of if name not in things))
    if rest is None or rest in kinds.stuff:
        return kinds
    if rest in (*kinds.things, *kinds.ignore):
        raise UserError(
            f"--rest {rest}: expected a stuff class or a new name, found a thing or ignored class."
        )
    return Kinds(kinds.things, (*kinds.stuff, rest), kinds.ignore, kinds.colors)


def _unknown_kinds(counts: Mapping[str, ClassCount], rest: str | None) -> str:
    rows = [
        f"  {name}: {sum(count.segments.values())} segments in {count.images} images"
        + (f", {count.kind} in the annotations" if count.kind else "")
        for name, count in counts.items()
    ]
    stuff = [name for name, count in counts.items() if count.kind == "stuff"]
    stuff += [rest] if rest and rest not in stuff else []
    content = {"things": [n for n in counts if n not in stuff], "stuff": stuff, "ignore": []}
    text = yaml.safe_dump(
        content, default_flow_style=None, sort_keys=False, width=90, allow_unicode=True
    )
    return (
        "The annotations do not say which classes are things (objects to count) and which are "
        "stuff (regions). The classes are:\n" + "\n".join(rows) + "\nList the things with --things "
        "CLASS ..., and all other classes become stuff. Or save a file such as this, move classes "
        "to stuff or ignore (void) as needed, and give it as --things FILE:\n"
        + textwrap.indent(text.rstrip(), "  ")
    )


def check_classes(kinds: Kinds, semantic: bool) -> None:
    """Raise UserError if a data set has too few or too many classes."""
    if not kinds.classes:
        raise UserError(
            "No classes are left, because all are ignored. List some as things or stuff."
        )
    if semantic and len(kinds.classes) == 1:
        raise UserError(f"{kinds.classes[0]!r} is the only class. Add a second: --rest background.")
    if not semantic and not kinds.things:
        raise UserError("No class is a thing. List the things with --things, or add --semantic.")
    # A panoptic data set's label PNGs have an additional label for all things.
    count = len(kinds.classes) if semantic else len(kinds.stuff) + 1
    if count > VOID_LABEL:
        raise UserError(
            f"There are {count} labels, expected at most {VOID_LABEL}. Ignore some classes."
        )
