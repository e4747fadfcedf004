"""A page about a registered data set: what its images show, and what looks like a mistake."""

import csv
import io
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

from ocr_panoptic.data.parallel import imap_with_progress
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import check_output_folder, write_text
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.workbench.looking.data_page import (
    ClassRow,
    Crop,
    CropGroup,
    DataPage,
    Pair,
    card_pictures,
)
from ocr_panoptic.workbench.looking.figures import css_color

from .augmented_samples import augmented_pictures
from .data_facts import (
    KINDS,
    ImageFacts,
    SegmentFacts,
    ShownPart,
    Suspicion,
    compared_facts,
    draw_place,
    look_at,
    save_jpeg,
)
from .data_items import DataClass, DataItem, DataItems, data_items
from .near_images import NEAR, SIDE, NearPair, near_pairs

SHOWN = 24  # suspicious segments of a kind, images without things, and pairs, in pictures
RARE_CLASSES, EXAMPLES = 8, 5
SIZES = 15
COLUMNS = (
    *("kind", "image", "class", "segments", "area", "x", "y", "width", "height", "value"),
    "other",  # image of a pair, or what is wrong with a file
)


def write_data_page(
    dataset: str,
    output: Path,
    compared_with: str = "",
    limit: int | None = None,
    cfg: CfgNode | None = None,
    workers: int | None = None,
) -> DataPage:
    """Write ``output``, and beside it a folder of its pictures and a CSV of all findings, by its
    name. A page that is there stays as it is until the new one is whole.

    Args:
        dataset: a registered data set.
        compared_with: another one, whose images should not be in it; "" for none.
        limit: images that are looked at, evenly spread over the data set; by default all.
        cfg: a completed config, whose mapper's work is shown.
        workers: processes, see :func:`.imap_with_progress`.

    Returns:
        what was written.

    Raises:
        ValueError: a data set that is none of segmentation, or an output that cannot be written.
        FileNotFoundError, DataFaults: of the data sets.
    """
    content = data_items(dataset, limit)
    others = data_items(compared_with).items if compared_with else []
    with _new_folder(output) as folder:
        view = _View(content, folder, workers)
        page = DataPage(
            dataset=dataset,
            **view.overview(),
            **view.details(),
            **view.equal(others, compared_with),
            findings=findings_file(output).name,
            samples=[] if cfg is None else view.samples(cfg),
            faults=view.faults,
        )
        view.draw()
        write_text(findings_file(output), view.findings)
        write_text(output, page.render())
    return page


def findings_file(page: Path) -> Path:
    """Return where the CSV of a page's findings lies."""
    return page.with_name(f"{page.stem}_findings.csv")


@contextmanager
def _new_folder(output: Path) -> Iterator[Path]:
    """A folder for the pictures of a page, which takes the place of those of earlier ones once the
    block has written the page, or goes with an error."""
    parent = output.with_name(f"{output.stem}_files")
    if output.is_dir():
        raise UserError(f"--output {output} is a folder; name the page in it: {output}/index.html")
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
    findings: str = ""

    def __post_init__(self) -> None:
        self._source = quote(f"{self.folder.parent.name}/{self.folder.name}")
        self._tasks: list[tuple[ShownPart, DataItem, Path]] = []
        look = partial(look_at, content=replace(self.content, items=[]), folder=self.folder)
        numbered = list(enumerate(self.content.items))
        self.facts = list(imap_with_progress(look, numbered, "look at the images", self.workers))
        self.usable = [number for number, facts in enumerate(self.facts) if not facts.fault]
        self.faults = [facts.fault for facts in self.facts if facts.fault]

    def overview(self) -> dict:
        """Numbers of all images, and what each is in the list of all."""
        facts = [self.facts[number] for number in self.usable]
        total, looked_at = self.content.total, len(self.content.items)
        images = f"{looked_at:,}" + (f" of {total:,}" if looked_at < total else "")
        sizes = Counter(f"{one.width} x {one.height}" for one in facts)
        pixels = sum(one.width * one.height for one in facts)
        cards = {
            "Images": images,
            "Classes": f"{sum(bool(r.images) for r in self.rows)} of {len(self.content.classes)}",
            "Void": f"{100 * sum(one.void for one in facts) / max(1, pixels):.1f} %",
            "Sizes": f"{len(sizes):,}",
            "Suspicious segments": f"{sum(len(one.suspicions) for one in facts):,}",
        }
        if self.content.has_things:
            cards["Segments"] = f"{sum(len(one.segments) for one in facts):,}"
        kind = "panoptic" if self.content.has_things else "semantic"
        return {
            "description": f"{images} images with {kind} annotations.",
            "cards": cards,
            "images": [self._entry(number) for number in self.usable],
            "folder": self._source,
            "sizes": _most_frequent(sizes),
        }

    def details(self) -> dict:
        """Classes, and the segments that are shown."""
        rare, absent = self._rare()
        return {
            "classes": self.rows,
            "empty": self._without_things(),
            "rare": rare,
            "absent": absent,
            "suspicious": self._suspicious(),
        }

    def equal(self, others: Sequence[DataItem], name: str) -> dict:
        """Images that are alike, within the data set and with the others; then all ``findings``
        are known."""
        numbers, items = self.usable, self.content.items
        pictures = [self.facts[number].picture for number in numbers]
        inside = [
            NearPair(numbers[a], numbers[b], distance) for a, b, distance in near_pairs(pictures)
        ]
        seen = (
            list(imap_with_progress(compared_facts, others, f"look at {name}", self.workers))
            if others
            else []
        )
        self.faults += [found.fault for found in seen if found.fault]
        known = [number for number, found in enumerate(seen) if not found.fault]
        across = [
            NearPair(numbers[a], known[b], distance)
            for a, b, distance in near_pairs(pictures, [seen[b].picture for b in known])
        ]
        self.findings = self._findings(inside, across, others)
        return {
            "compared_with": name,
            "leaks": [
                self._pair(pair, others[pair.second], seen[pair.second], f"l{k}")
                for k, pair in enumerate(across[:SHOWN])
            ],
            "num_leaks": len(across),
            "duplicates": [
                self._pair(pair, items[pair.second], self.facts[pair.second], f"d{k}")
                for k, pair in enumerate(inside[:SHOWN])
            ],
            "num_duplicates": len(inside),
            "equal_note": f"Images are compared as pictures of {SIDE}x{SIDE} colours: another size "
            "or compression changes these by about one level of 255. Each image is listed with the "
            f"nearest other one, if they differ by less than {NEAR:g}.",
        }

    def samples(self, cfg: CfgNode) -> list[tuple[str, list[Crop]]]:
        rows = []
        for number, (name, pictures) in enumerate(augmented_pictures(cfg)):
            crops = []
            for place, (title, caption, picture) in enumerate(pictures):
                file = f"a{number:02d}_{place}.jpg"
                save_jpeg(self.folder / file, picture)
                crops.append(Crop(f"{self._source}/{file}", title, caption))
            rows.append((name, crops))
        return rows

    @cached_property
    def rows(self) -> list[ClassRow]:
        return class_rows(self.content, [self.facts[number] for number in self.usable])

    def _entry(self, number: int) -> dict:
        facts = self.facts[number]
        return {
            "name": self.content.items[number].name,
            "picture": number,
            "size": [facts.width, facts.height],
            "void": round(100 * facts.void / (facts.width * facts.height), 2),
            "segments": len(facts.segments),
            "things": self._things(number) if self.content.has_things else None,
            "classes": sorted({s.class_index for s in facts.segments}),
            "flags": sorted({s.kind for s in facts.suspicions}),
            "truth": self.content.items[number].truth is not None,
        }

    def _things(self, number: int) -> int:
        return sum(self._class_of(s).isthing for s in self.facts[number].segments)

    def _all_suspicions(self) -> Iterator[tuple[int, Suspicion]]:
        for number in self.usable:
            for suspicion in self.facts[number].suspicions:
                yield number, suspicion

    def _suspicious(self) -> list[CropGroup]:
        groups = []
        for name, kind in KINDS.items():
            if not self.content.has_things and name in ("split", "duplicate"):
                continue
            found = [entry for entry in self._all_suspicions() if entry[1].kind == name]
            shown = sorted(found, key=lambda entry: kind.rank(entry[1]))[:SHOWN]
            parts = [
                (
                    ShownPart(number, s.segments, s.segment.box),
                    f"{self._class_of(s.segment).name}, {s.segment.area:,} pixels"
                    f"{kind.value(s.value)}",
                )
                for number, s in shown
            ]
            note = f"A segment that {kind.meaning}."
            groups.append(CropGroup(kind.title, note, len(found), self._crops(parts, name)))
        return groups

    def _class_of(self, segment: SegmentFacts) -> DataClass:
        return self.content.classes[segment.class_index]

    def _without_things(self) -> CropGroup | None:
        if not self.content.has_things:
            return None
        found = [number for number in self.usable if not self._things(number)]
        crops = [self._crop(f"{n:06d}o.jpg", self.content.items[n]) for n in found[:SHOWN]]
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
            parts = [
                (ShownPart(n, (s.id,), s.box), f"{s.area:,} pixels") for n, s in largest[:EXAMPLES]
            ]
            images = "1 image" if row.images == 1 else f"{row.images:,} images"
            groups.append(CropGroup(row.name, images, len(largest), self._crops(parts, f"r{k}_")))
        return groups, absent

    def _crops(self, parts: Sequence[tuple[ShownPart, str]], prefix: str) -> list[Crop]:
        """Return pictures of parts with captions, named after their images; :meth:`draw` draws
        them."""
        crops = []
        for k, (part, caption) in enumerate(parts):
            item, file = self.content.items[part.image], f"{prefix}{k}.jpg"
            self._tasks.append((part, item, self.folder / file))
            crops.append(self._crop(file, item, caption))
        return crops

    def _crop(self, file: str, item: DataItem, caption: str = "") -> Crop:
        return Crop(f"{self._source}/{file}", item.name, caption)

    def draw(self) -> None:
        """Draw the places that the page shows."""
        draw = partial(draw_place, content=replace(self.content, items=[]))
        list(imap_with_progress(draw, self._tasks, "draw what is shown", self.workers))

    def _pair(self, pair: NearPair, item: DataItem, facts: ImageFacts, name: str) -> Pair:
        """Args: item, facts: of the second image."""
        picture, _ = card_pictures(read_picture(item.image, "RGB"), None, {})
        save_jpeg(self.folder / f"{name}.jpg", picture)
        same = facts.digest == self.facts[pair.first].digest
        return Pair(
            self._crop(f"{pair.first:06d}.jpg", self.content.items[pair.first]),
            self._crop(f"{name}.jpg", item),
            "the same file" if same else f"{pair.distance:.1f} levels apart",
        )

    def _findings(
        self, inside: Sequence[NearPair], across: Sequence[NearPair], others: Sequence[DataItem]
    ) -> str:
        """A CSV with a row for all that the page has found, however much of it is shown."""
        items = self.content.items
        text = io.StringIO()
        table = csv.writer(text)
        table.writerow(COLUMNS)
        for fault in self.faults:
            table.writerow(("fault", *[""] * 9, fault))
        for number, s in self._all_suspicions():
            row = (s.kind, items[number].name, self._class_of(s.segment).name)
            ids = " ".join(map(str, s.segments))
            table.writerow((*row, ids, s.segment.area, *s.segment.box, f"{s.value:.4g}", ""))
        for kind, pairs, seconds in (("equal", inside, items), ("leak", across, others)):
            for a, b, distance in pairs:
                table.writerow((kind, items[a].name, *[""] * 7, f"{distance:.3g}", seconds[b].name))
        return text.getvalue()


def _most_frequent(sizes: Counter[str]) -> list[tuple[str, int, float]]:
    most = max(sizes.values(), default=1)
    listed = [(size, count, 100 * count / most) for size, count in sizes.most_common(SIZES)]
    if rest := sum(sizes.values()) - sum(count for _, count, _ in listed):
        listed.append((f"{len(sizes) - SIZES} other sizes", rest, 100 * min(1, rest / most)))
    return listed


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
