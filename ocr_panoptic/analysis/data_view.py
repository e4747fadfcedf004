"""A page about a registered data set: what its images show, and what looks like a mistake."""

import csv
import io
import logging
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from urllib.parse import quote

import numpy as np
from detectron2.config import CfgNode

from ocr_panoptic.data.parallel import map_with_progress
from ocr_panoptic.files import check_output_folder, write_text
from ocr_panoptic.pictures import read_picture
from ocr_panoptic.visualization.data_page import (
    ClassRow,
    Crop,
    CropGroup,
    DataPage,
    Pair,
    card_pictures,
)
from ocr_panoptic.visualization.figures import css_color

from .augmented_samples import augmented_pictures
from .data_facts import KINDS, ImageFacts, Suspicion
from .data_items import DataItems, Item, data_items
from .data_pictures import Place, describe, draw_place, look_at, write_jpeg
from .near_images import NEAR, SIDE, NearPair, near_pairs

logger = logging.getLogger(__name__)

SHOWN = 24  # suspicious segments of a kind, images without things, and pairs, in pictures
RARE_CLASSES, EXAMPLES = 8, 5
SIZES = 15
TITLES = {
    "tiny": "Tiny segments",
    "split": "Split things",
    "duplicate": "Things twice",
    "void": "Segments at void",
}


def write_data_page(
    dataset: str,
    output: Path,
    compared_with: str = "",
    limit: int | None = None,
    cfg: CfgNode | None = None,
    workers: int | None = None,
) -> DataPage:
    """Write ``output``, and its pictures into a folder of its name beside it. A page that is there
    stays as it is until the new one is whole.

    Args:
        dataset: a registered data set.
        compared_with: another one, whose images should not be in it; "" for none.
        limit: images that are looked at, evenly spread over the data set; by default all.
        cfg: a completed config, whose mapper's work is shown.
        workers: processes, see :func:`map_with_progress`.

    Returns:
        what was written.

    Raises:
        ValueError: a data set that is none of segmentation, or an output that cannot be written.
        FileNotFoundError, DataFaults: of the data sets.
    """
    content = data_items(dataset, limit)
    other = data_items(compared_with) if compared_with else None
    with _new_folder(output) as folder:
        view = _View(content, folder, workers)
        page = view.page(dataset, output.parent)
        page = replace(page, **view.equal(other, compared_with))
        if cfg is not None:
            page = replace(page, samples=view.samples(cfg))
        view.draw()
        write_text(output, page.render())
    return page


@contextmanager
def _new_folder(output: Path) -> Iterator[Path]:
    """A folder for the pictures of a page, which takes the place of those of earlier ones once the
    block has written the page, or goes with an error."""
    parent = output.with_name(f"{output.stem}_files")
    if output.is_dir():
        raise ValueError(f"--output {output} is a folder; name the page in it: {output}/index.html")
    check_output_folder(parent, "The folder of pictures", "Give another --output.")
    folder = parent / secrets.token_hex(4)
    folder.mkdir()
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for other in parent.iterdir():
        if other != folder and re.fullmatch("[0-9a-f]{8}", other.name):
            shutil.rmtree(other, ignore_errors=True)


@dataclass
class _View:
    content: DataItems
    folder: Path
    workers: int | None

    def __post_init__(self) -> None:
        self._tasks: list[tuple[Place, Item, Path]] = []
        look = partial(look_at, content=replace(self.content, items=[]), folder=self.folder)
        numbered = list(enumerate(self.content.items))
        self.facts = map_with_progress(look, numbered, "look at the images", self.workers)
        self.usable = [number for number, facts in enumerate(self.facts) if not facts.fault]

    def page(self, dataset: str, beside: Path) -> DataPage:
        self._source = quote(Path(os.path.relpath(self.folder, beside)).as_posix())
        items, facts = self.content.items, [self.facts[number] for number in self.usable]
        suspicious = self._suspicious()
        empty = self._without_things()
        rare, absent = self._rare()
        sample = "" if len(items) == self.content.total else f" of {self.content.total:,}"
        kind = "panoptic" if self.content.has_things else "semantic"
        sizes = Counter(f"{one.width} x {one.height}" for one in facts)
        most = max(sizes.values(), default=1)
        listed = [(size, n, 100 * n / most) for size, n in sizes.most_common(SIZES)]
        if rest := sum(sizes.values()) - sum(n for _, n, _ in listed):
            listed.append((f"{len(sizes) - SIZES} other sizes", rest, 100 * rest / most))
        pixels = sum(one.width * one.height for one in facts)
        cards = {
            "Images": f"{len(items):,}{sample}",
            "Classes": f"{sum(bool(r.images) for r in self.rows)} of {len(self.content.classes)}",
            "Void": f"{100 * sum(one.void for one in facts) / max(1, pixels):.1f} %",
            "Sizes": f"{len(sizes):,}",
        }
        if empty is not None:
            cards["Segments"] = f"{sum(len(one.segments) for one in facts):,}"
            cards["Images without things"] = f"{empty.total:,}"
        cards["Suspicious segments"] = f"{sum(group.total for group in suspicious):,}"
        return DataPage(
            dataset=dataset,
            description=f"{len(items):,}{sample} images with {kind} annotations.",
            cards=cards,
            classes=self.rows,
            images=[self._entry(number) for number in self.usable],
            folder=self._source,
            findings=f"{self._source}/findings.csv",
            sizes=listed,
            empty=empty,
            rare=rare,
            absent=absent,
            suspicious=suspicious,
            compared_with="",
            leaks=(),
            num_leaks=0,
            duplicates=(),
            num_duplicates=0,
            equal_note="",
            samples=(),
            faults=[one.fault for one in self.facts if one.fault],
        )

    def equal(self, other: DataItems | None, name: str) -> dict:
        """What the page says of images that are alike, and the table of all findings."""
        numbers = self.usable
        pictures = [self.facts[number].picture for number in numbers]
        inside = [
            NearPair(numbers[a], numbers[b], distance) for a, b, distance in near_pairs(pictures)
        ]
        across: list[NearPair] = []
        others: list[Item] = []
        digests: list[str] = []
        if other is not None:
            others = other.items
            seen = map_with_progress(describe, others, f"look at {name}", self.workers)
            known = [number for number, found in enumerate(seen) if found.picture is not None]
            across = [
                NearPair(numbers[a], known[b], distance)
                for a, b, distance in near_pairs(pictures, [seen[b].picture for b in known])
            ]
            digests = [found.digest for found in seen]
        self._write_findings(inside, across, others)
        own = [facts.digest for facts in self.facts]
        return {
            "compared_with": name,
            "leaks": [
                self._pair(p, others[p.second], own[p.first] == digests[p.second], f"l{k}")
                for k, p in enumerate(across[:SHOWN])
            ],
            "num_leaks": len(across),
            "duplicates": [
                self._pair(p, self.content.items[p.second], own[p.first] == own[p.second], f"d{k}")
                for k, p in enumerate(inside[:SHOWN])
            ],
            "num_duplicates": len(inside),
            "equal_note": f"Images are compared as pictures of {SIDE}x{SIDE} colours: another size "
            "or compression changes these by about one level of 255. Pairs that differ by less "
            f"than {NEAR:g} are listed, the nearest first.",
        }

    def samples(self, cfg: CfgNode) -> list[tuple[str, list[Crop]]]:
        rows = []
        for number, (name, pictures) in enumerate(augmented_pictures(cfg)):
            crops = []
            for place, (title, caption, picture) in enumerate(pictures):
                file = f"a{number:02d}_{place}.jpg"
                write_jpeg(self.folder / file, picture)
                crops.append(Crop(f"{self._source}/{file}", title, caption))
            rows.append((name, crops))
        return rows

    @cached_property
    def rows(self) -> list[ClassRow]:
        return class_rows(self.content, [self.facts[number] for number in self.usable])

    def _entry(self, number: int) -> dict:
        facts, classes = self.facts[number], self.content.classes
        things = sum(classes[s.class_index].isthing for s in facts.segments)
        return {
            "name": self.content.items[number].name,
            "picture": number,
            "size": [facts.width, facts.height],
            "void": round(100 * facts.void / (facts.width * facts.height), 2),
            "segments": len(facts.segments),
            "things": things if self.content.has_things else None,
            "classes": sorted({s.class_index for s in facts.segments}),
            "flags": sorted({s.kind for s in facts.suspicions}),
            "truth": self.content.items[number].truth is not None,
        }

    def _all_suspicions(self) -> Iterator[tuple[int, Suspicion]]:
        for number in self.usable:
            for suspicion in self.facts[number].suspicions:
                yield number, suspicion

    def _suspicious(self) -> list[CropGroup]:
        groups = []
        for kind in KINDS if self.content.has_things else ("tiny", "void"):
            found = [entry for entry in self._all_suspicions() if entry[1].kind == kind]
            shown = sorted(found, key=lambda entry: _rank(entry[1]))[:SHOWN]
            places = [Place(number, s.segments, s.box) for number, s in shown]
            captions = [
                f"{self.content.classes[s.class_index].name}, {s.area:,} pixels{_value(s)}"
                for _, s in shown
            ]
            crops = self._crops(places, captions, kind)
            groups.append(
                CropGroup(TITLES[kind], f"A segment that {KINDS[kind]}.", len(found), crops)
            )
        return groups

    def _without_things(self) -> CropGroup | None:
        if not self.content.has_things:
            return None
        classes = self.content.classes
        found = [
            number
            for number in self.usable
            if not any(classes[s.class_index].isthing for s in self.facts[number].segments)
        ]
        crops = [
            Crop(f"{self._source}/{number:06d}o.jpg", self.content.items[number].name, "")
            for number in found[:SHOWN]
        ]
        note = "The semantic branch learns from them, the detector that nothing is there."
        note = note if found else "Every image shows one."
        return CropGroup("Images without things", note, len(found), crops)

    def _rare(self) -> tuple[list[CropGroup], list[str]]:
        rows = list(enumerate(self.rows))
        absent = [row.name for _, row in rows if not row.images]
        seen = sorted((e for e in rows if e[1].images), key=lambda e: (e[1].images, e[1].share))
        groups = []
        for k, row in seen[:RARE_CLASSES]:
            largest = []
            for number in self.usable:
                own = [s for s in self.facts[number].segments if s.class_index == k]
                if own:
                    largest.append((number, max(own, key=lambda s: s.area)))
            largest.sort(key=lambda entry: -entry[1].area)
            places = [Place(n, (s.id,), s.box) for n, s in largest[:EXAMPLES]]
            captions = [f"{s.area:,} pixels" for _, s in largest[:EXAMPLES]]
            images = "1 image" if row.images == 1 else f"{row.images:,} images"
            groups.append(
                CropGroup(row.name, images, len(largest), self._crops(places, captions, f"r{k}_"))
            )
        return groups, absent

    def _crops(self, places: Sequence[Place], captions: Sequence[str], prefix: str) -> list[Crop]:
        """Pictures of places, named after their images; :meth:`draw` draws them."""
        tasks = [
            (place, self.content.items[place.image], self.folder / f"{prefix}{k}.jpg")
            for k, place in enumerate(places)
        ]
        self._tasks += tasks
        return [
            Crop(f"{self._source}/{path.name}", item.name, caption)
            for (_, item, path), caption in zip(tasks, captions, strict=True)
        ]

    def draw(self) -> None:
        """Draw the places that the page shows."""
        draw = partial(draw_place, content=replace(self.content, items=[]))
        map_with_progress(draw, self._tasks, "draw what is shown", self.workers)

    def _pair(self, pair: NearPair, second: Item, same_file: bool, name: str) -> Pair:
        write_jpeg(
            self.folder / f"{name}.jpg",
            card_pictures(read_picture(second.image, "RGB"), None, {})[0],
        )
        first = self.content.items[pair.first]
        caption = "the same file" if same_file else f"{pair.distance:.1f} levels apart"
        return Pair(
            Crop(f"{self._source}/{pair.first:06d}.jpg", first.name, ""),
            Crop(f"{self._source}/{name}.jpg", second.name, ""),
            caption,
        )

    def _write_findings(
        self, inside: Sequence[NearPair], across: Sequence[NearPair], others: Sequence[Item]
    ) -> None:
        """A CSV with a row for all that the page has found, however much of it is shown."""
        items, classes = self.content.items, self.content.classes
        text = io.StringIO()
        table = csv.writer(text)
        table.writerow(
            ("kind", "image", "class", "segments", "area", "x", "y", "width", "height", "value")
            + ("other image",)
        )
        for item, facts in zip(items, self.facts, strict=True):
            if facts.fault:
                table.writerow(("fault", item.name, *[""] * 8, facts.fault))
        for number, s in self._all_suspicions():
            name = classes[s.class_index].name
            ids = " ".join(map(str, s.segments))
            table.writerow(
                (s.kind, items[number].name, name, ids, s.area, *s.box, f"{s.value:.4g}", "")
            )
        for kind, pairs, seconds in (("equal", inside, items), ("leak", across, others)):
            for a, b, distance in pairs:
                table.writerow((kind, items[a].name, *[""] * 7, f"{distance:.3g}", seconds[b].name))
        write_text(self.folder / "findings.csv", text.getvalue())


def _rank(suspicion: Suspicion) -> float:
    """The smallest tiny segment is the first, the largest at void, the greatest value of others."""
    if suspicion.kind == "tiny":
        return suspicion.area
    return -suspicion.area if suspicion.kind == "void" else -suspicion.value


def _value(suspicion: Suspicion) -> str:
    if suspicion.kind == "tiny":
        return ""
    if suspicion.kind == "split":
        return f", parts {suspicion.value:.1f} lengths apart"
    if suspicion.kind == "duplicate":
        return f", IoU {suspicion.value:.2f}"
    return f", {100 * suspicion.value:.0f} % of its outline"


def class_rows(content: DataItems, facts: Sequence[ImageFacts]) -> list[ClassRow]:
    """Images, segments and areas of each class, in the order of the classes."""
    areas: list[list[int]] = [[] for _ in content.classes]
    images = [0] * len(content.classes)
    for one in facts:
        for segment in one.segments:
            areas[segment.class_index].append(segment.area)
        for k in {segment.class_index for segment in one.segments}:
            images[k] += 1
    total = max(1, sum(map(sum, areas)))
    return [
        ClassRow(
            name=data_class.name,
            kind=("stuff", "thing")[data_class.isthing] if content.has_things else "",
            color=css_color(data_class.color),
            images=images[k],
            segments=len(areas[k]) if content.has_things else None,
            share=100 * sum(areas[k]) / total,
            areas=tuple(np.percentile(areas[k], (10, 50, 90)).tolist()) if areas[k] else None,
        )
        for k, data_class in enumerate(content.classes)
    ]
