"""The message about many faults is short, and a file lists them all."""

import pickle

import pytest

from ocr_panoptic.data.data_file import cache_folder
from ocr_panoptic.data.faults import DataFaults, faults_listed, first_few


def test_a_few_faults_are_all_shown_and_shared_faults_once():
    assert str(DataFaults(["/a: x"])) == "1 fault in the data:\n  /a: x"
    names = list("abcdefghijklmnopqrst")
    assert str(DataFaults(names * 2)).split("\n  ") == ["20 faults in the data:", *names]


def test_the_first_twenty_faults_are_shown_and_all_are_in_a_file(tmp_path):
    many = [f"/d/{n}.jpg: image {n} not found." for n in range(2000)]
    path = tmp_path / "new/faults.txt"
    with pytest.raises(DataFaults) as error, faults_listed(path):
        raise DataFaults(many)
    title, *first, rest = str(error.value).splitlines()
    assert (title, rest) == ("2,000 faults in the data:", f"  and 1,980 more, all in {path}")
    assert first == [f"  {fault}" for fault in many[:20]]
    assert path.read_text().splitlines() == many
    copy = pickle.loads(pickle.dumps(DataFaults(many)))
    assert copy.faults == many and str(copy).endswith("and 1,980 more")


def test_each_fault_is_one_printable_line():
    error = DataFaults(["/d/\x1b[31m\n\x9b\ud800.jpg: lost", "x" * 30_000])
    first, second = str(error).splitlines()[1:]
    assert first == r"  /d/\x1b[31m\n\x9b\ud800.jpg: lost"
    assert len(second) < 500
    assert first_few(["\x1b", "b"]) == r"\x1b, b"


def test_a_check_writes_all_faults_to_a_file(raw, clean_catalog):
    raw.content["images"] = [{"id": number} for number in range(30)]
    with pytest.raises(DataFaults) as error:
        raw.checked()
    path = cache_folder() / "pets_faults.txt"
    assert str(error.value).endswith(f"all in {path}")
    assert len(path.read_text().splitlines()) == len(error.value.faults) > 30
