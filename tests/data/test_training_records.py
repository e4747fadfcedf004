"""Records that a training reads from the index, against those of the data set."""

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, get_detection_dataset_dicts

from ocr_panoptic.data import indexed_records
from support.raw_pets import CAT, RawData

pytestmark = pytest.mark.usefixtures("clean_catalog")


def records(name, usable=False):
    return list(indexed_records([name], usable))


def test_equal_to_those_of_the_data_set(raw):
    raw.checked()
    assert records("pets_train") == DatasetCatalog.get("pets_train")


@pytest.mark.slow
def test_images_without_instances_are_left_out_where_asked(raw, caplog):
    raw.content["annotations"][1]["segments_info"][1]["iscrowd"] = 1  # the only thing of image 5
    raw.checked()
    assert [record["image_id"] for record in records("pets_train")] == [5, 21]
    assert [record["image_id"] for record in records("pets_train", usable=True)] == [21]
    raw.content["annotations"][0]["segments_info"][2]["iscrowd"] = 1
    raw.checked()
    with pytest.raises(ValueError, match="no image has an instance that is no crowd"):
        records("pets_train", usable=True)


def test_several_data_sets(raw, tmp_path):
    other = RawData(tmp_path / "other")
    other.add(7, "7.png", "7.png", np.full((9, 3), 6), [{"id": 6, "category_id": CAT}])
    raw.checked("pets")
    other.checked("cats")
    names = ["pets_train", "cats_train"]
    found = indexed_records(names, False)
    assert list(found) == get_detection_dataset_dicts(names, filter_empty=False)
    assert found.wide.tolist() == [True, True, True, False, True]


def test_table_of_instances(raw, monkeypatch):
    """The dog and the cats that are no crowds."""
    shown = []
    monkeypatch.setattr(
        "ocr_panoptic.data.training_stream.print_instances_class_histogram",
        lambda dicts, names: shown.append(
            ([a["category_id"] for record in dicts for a in record["annotations"]], names)
        ),
    )
    raw.checked()
    records("pets_train")
    assert sorted(shown[0][0]) == [0, 1] and shown[0][1] == ["cat", "dog"]


def test_data_of_other_code_have_no_index(raw):
    raw.checked()
    DatasetCatalog.register("theirs", lambda: [])
    assert indexed_records(["pets_train", "theirs"], False) is None
    assert indexed_records(["nowhere"], False) is None
