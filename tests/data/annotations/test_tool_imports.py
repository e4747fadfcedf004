"""Whole imports of what annotation tools wrote, to the data set that is trained on."""

from dataclasses import replace

import pytest

from ocr_panoptic.data import AnnotationSource, ImportPlan
from support.imported import as_set, read_maps, run_import
from support.tool_exports import EXPORTS, IMAGES, KINDS

pytestmark = pytest.mark.usefixtures("clean_catalog")


@pytest.mark.parametrize(
    "format, source, options",
    [
        ("cvat", "cvat.xml", {}),
        ("coco", "cvat_coco.json", {"crowds": "objects"}),  # CVAT marks all masks as crowds
        ("voc", "cvat_masks", {}),
        ("labelme", "labelme", {}),
        ("label-studio", "label_studio.json", {}),
    ],
)
def test_masks_are_exact(tmp_path, format, source, options):
    plan = replace(ImportPlan(format, KINDS), **options)
    found = run_import(tmp_path, AnnotationSource(EXPORTS / source, IMAGES), plan)
    truth = read_maps(EXPORTS / "panoptic.json", EXPORTS / "panoptic")
    assert found.keys() == truth.keys() == {"a", "b"}
    for name, regions in truth.items():
        assert as_set(found[name]) == as_set(regions)


@pytest.mark.parametrize(
    "format, source",
    [("cvat", "cvat.xml"), ("labelme", "labelme"), ("label-studio", "label_studio.json")],
)
def test_asks_what_are_things(tmp_path, format, source):
    with pytest.raises(ValueError, match="(?s)do not say which.*ball: 4 segments.*--things"):
        run_import(tmp_path, AnnotationSource(EXPORTS / source, IMAGES), ImportPlan(format))
    assert not (tmp_path / "scenes").exists()
