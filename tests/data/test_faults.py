"""The message of many faults is short, and nothing is lost."""

import pickle

import pytest

from ocr_panoptic.data.faults import DataFaults, faults_listed, first_few, kind_of
from ocr_panoptic.data.index import cache_folder


def many() -> DataFaults:
    wrong = [f"/d/p.json: image {n}: height must be a number, found 'x{n}'." for n in range(1500)]
    lost = [f"/d/my images/{n}.jpg: image {n} not found." for n in range(500)]
    return DataFaults([*wrong, *lost])


def test_few_are_all_shown():
    assert str(DataFaults(["/a: x"])) == "1 fault in the data:\n  /a: x"
    names = list("abcdefghijklmnopqrst")
    expected = ["20 faults in the data:", *(f"  {name}" for name in names)]
    assert str(DataFaults(names)).splitlines() == expected


def test_what_two_splits_have_is_one_fault():
    assert DataFaults(["b", "a", "b"]).faults == ["b", "a"]


def test_of_many_the_first_and_how_many_of_each_kind():
    error = many()
    title, *first = str(error).splitlines()[:21]
    assert title == "2,000 faults in the data, the first 20:"
    assert first == [f"  {fault}" for fault in error.faults[:20]]
    assert str(error).splitlines()[21:] == [
        "How many of each kind:",
        "  1,500 x image N: height must be a number, found '...'.",
        "  500 x image N not found.",
    ]


def test_the_whole_list_is_in_a_file_that_the_message_names(tmp_path):
    path = tmp_path / "new" / "faults.txt"
    with (
        pytest.raises(DataFaults, match=f"All of them are listed in {path}$") as error,
        faults_listed(path),
    ):
        raise many()
    with pytest.raises(ValueError), faults_listed(path):
        raise ValueError
    assert path.read_text().splitlines() == error.value.faults
    with faults_listed(path):
        pass
    assert not path.exists(), "it goes with the faults"
    with pytest.raises(DataFaults), faults_listed(tmp_path / "few.txt"):
        raise DataFaults(["a"])
    assert not (tmp_path / "few.txt").exists()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (
            '/d/p.json: annotation of image 21: segment 3: category 7 is not among "categories".',
            'annotation of image N: segment N: category N is not among "categories".',
        ),
        (
            "/d/a.png: segment 3 covers 9 pixels but is not in the JSON's segments_info.",
            "segment N covers N pixels but is not in the JSON's segments_info.",
        ),
        (
            "/d/a.png: segment 7: bbox is [0, 0, 7, 3] in the JSON, [0, 0, 8, 3] in the PNG.",
            "segment N: bbox is [...] in the JSON, [...] in the PNG.",
        ),
        ("/my d/a.jpg: no label PNG /my/d/a.png.", "no label PNG FILE."),
        (
            "c.yaml: a class's name must be a text (in quotes?), found 'it\\'s'.",
            "c.yaml: a class's name must be a text (in quotes?), found '...'.",
        ),
    ],
)
def test_kinds(fault, kind):
    assert kind_of(fault) == kind


def test_kinds_without_end():
    error = DataFaults([chr(ord("a") + n) for n in range(26)])
    assert str(error).endswith("  1 x t\n  and 6 other kinds")


def test_one_line_each_that_the_terminal_shows_as_it_is(tmp_path):
    error = DataFaults(["/d/\x1b[31m\n\x9b\ud800.jpg: lost", "x" * 30_000])
    first, second = str(error).splitlines()[1:]
    assert first == r"  /d/\x1b[31m\n\x9b\ud800.jpg: lost"
    assert len(second) < 500
    error.write_list(tmp_path / "faults.txt")
    assert (tmp_path / "faults.txt").read_text().splitlines() == [first[2:], "x" * 30_000]
    assert first_few(["\x1b", "b"]) == r"\x1b, b"


def test_from_another_process():
    copy = pickle.loads(pickle.dumps(many()))
    assert (copy.faults, str(copy)) == (many().faults, str(many()))


def test_a_check_lists_what_the_message_does_not_show(raw, clean_catalog):
    raw.content["images"] = [{"id": number} for number in range(30)]
    with pytest.raises(DataFaults) as error:
        raw.checked()
    path = cache_folder() / "pets_faults.txt"
    assert str(error.value).endswith(f"All of them are listed in {path}")
    assert len(path.read_text().splitlines()) == len(error.value.faults) > 30


def test_a_list_that_cannot_be_written(tmp_path, caplog):
    """The first faults are shown all the same."""
    path = tmp_path / "faults.txt"
    path.mkdir()
    with pytest.raises(DataFaults) as error, faults_listed(path):
        raise many()
    assert "cannot be written" in caplog.text and str(path) in caplog.text
    assert "How many of each kind:" in str(error.value) and str(path) not in str(error.value)
