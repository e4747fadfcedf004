"""Segments in a file in place of memory."""

import tracemalloc

import numpy as np

from ocr_panoptic.data.annotations.annotated_image import Segment, SegmentWriter
from ocr_panoptic.data.annotations.import_plan import AnnotationSource, ImportPlan, read_sources
from ocr_panoptic.data.annotations.masks import mask_of_pixels

NOISE = np.random.default_rng(0).random((60, 30, 400)) < 0.5


def test_what_is_stored_is_what_is_read(tmp_path):
    first = Segment("é", mask_of_pixels(NOISE[0]), True, is_crowd=True, score=0.1 + 0.2)
    images = [[first], [], [Segment("b", mask_of_pixels(NOISE[1])), first]]
    with SegmentWriter(tmp_path / "a/file") as writer:
        stored = [writer.add(segments, (30, 400)) for segments in images]
    for _ in range(2):
        assert [list(segments) for segments in stored] == images


def test_memory_holds_those_of_one_image(tmp_path, monkeypatch):
    """Sixty images have 6 kB of runs each."""
    from ocr_panoptic.data.annotations import import_plan
    from ocr_panoptic.data.annotations.annotated_image import AnnotatedImage

    def read(source, images):
        for number, pixels in enumerate(NOISE):
            segments = [Segment("cat", mask_of_pixels(pixels), True)]
            yield AnnotatedImage(tmp_path / str(number), f"{number}.png", 30, 400, segments)

    row = import_plan.ANNOTATION_FORMATS["labelme"]._replace(read=read)
    monkeypatch.setitem(import_plan.ANNOTATION_FORMATS, "labelme", row)
    tracemalloc.start()
    images, found = read_sources(
        {"train": AnnotationSource(tmp_path)}, ImportPlan("labelme"), tmp_path
    )
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["cat"].images == len(images["train"]) == 60
    masks = [segment.mask for image in images["train"] for segment in image.segments]
    assert 2 * held < sum(len(mask["counts"]) for mask in masks)
    assert len(masks) == 60
