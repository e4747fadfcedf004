"""An annotation file that is named as a data file is recognized."""

import pytest

import ocr_panoptic
from ocr_panoptic.errors import UserError
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{images: [], annotations: 1, categories: []}", "import --from coco"),
        ("{images: [], annotations: [{segments_info: 0}], categories: []}", "this is a panoptic"),
        ("{names: [a], nc: 1, train: x, val: y}", "--from yolo-seg"),
        ("{imagePath: a.png, shapes: []}", "LabelMe. Import its folder with --from labelme"),
        ("[{id: 1, data: {}, annotations: []}]", "--from label-studio"),
        ("{a.png9: {filename: a.png, regions: []}}", "--from via"),
        ("[{type: bbox, classId: 7, probability: 100, points: {}}]", "SuperAnnotate. Export COCO"),
        ("{readme: x, label_map: {}, export_info: {}, 5: {}}", "Diffgram. Export COCO"),
        ("{info: {}, images: [], annotations: [{image_id: 1, caption: a}]}", "COCO captions. They"),
        ("{openlabel: {metadata: {}, frames: {}}}", "OpenLABEL. Export COCO"),
        ("<annotations/>", "--from cvat"),
        ("{pages: []}", "import --from FORMAT"),
    ],
)
def test_the_format_is_named(tmp_path, content, message):
    path = tmp_path / ("a.xml" if "<" in content else "a.yaml")
    path.write_text(content)
    with pytest.raises(UserError, match=f"^{path}: .*{message}"):
        ocr_panoptic.check(path)


@pytest.mark.parametrize(
    ("format", "content", "message"),
    [
        ("via", '{"_via_img_metadata": {}}', "not a VIA 1 or 2 JSON"),
        ("label-studio", '[{"data": {}, "annotations": []}, {}]', "not a list of tasks with data"),
        ("coco", '{"_via_img_metadata": {}}', "Import it with --from via"),
        ("coco", '{"image": "a.jpg", "prefix": "segment a", "suffix": "b"}\n{}', "PaliGemma"),
    ],
)
def test_the_given_format_is_no_advice(tmp_path, format, content, message):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match=message):
        ANNOTATION_FORMATS[format].read(tmp_path / "a.json", tmp_path)
