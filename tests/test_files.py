"""Files are written whole or not at all, faults name their file, YAML and terminals are safe."""

import pytest

from ocr_panoptic.formats.files import check_output_folder, printable, read_yaml, replacing


def test_two_temporary_names_differ(tmp_path):
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as other:
        assert one != other
        one.touch()
        other.touch()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("file/below", r"is not writable \(.*\)"),
        ("file", "is a file"),
        ("link", "is a broken link"),
    ],
)
def test_a_folder_that_cannot_be_written(tmp_path, name, fault):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ValueError, match=rf"^Output .*{name} {fault}\. Take another\.$"):
        check_output_folder(tmp_path / name, "Output", "Take another.")


def test_printable():
    assert printable("a\x1b\n\t\udc80é\\") == r"a\x1b\n\t\udc80é" + "\\"


def test_errors_name_the_file_and_not_its_temporary_name(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError) as error, replacing(tmp_path / "a") as temporary:
        temporary.touch()
    assert str(error.value) == f"[Errno 21] Is a directory: '{tmp_path}/a'"
    with pytest.raises(FileNotFoundError) as error, replacing(tmp_path / "b") as temporary:
        temporary.read_bytes()
    assert error.value.filename == f"{tmp_path}/b"


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path):
    with (
        pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/a'"),
        replacing(tmp_path / "a") as temporary,
        open("/dev/full", "wb", buffering=0) as full,
    ):
        temporary.touch()
        full.write(b"x")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "text, fault",
    [
        (b"A:\n\tB: 1\n", "cannot start any token.*line 2"),
        (b"A: [", "line 1"),
        (b"A: 2020-99-99\n", "month must be"),
        (b"A: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        (b"A: 1\nB: {C: 1, D: 2, C: 3}\n", "the key 'C' is given twice.*line 2"),
        (b"A: 1\nB: 1\nA: 1\n", "the key 'A' is given twice.*line 3"),
        (b"{a: " * 3000, "nested too deeply"),
        (b"\xff\xfe\x81", "'utf-8' codec"),
    ],
)
def test_faulty_yaml_gives_one_line(tmp_path, text, fault):
    (tmp_path / "x.yaml").write_bytes(text)
    with pytest.raises(ValueError, match=f"x.yaml is not valid YAML: .*{fault}") as error:
        read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(error.value)


def test_yaml_aliases_and_merged_keys(tmp_path):
    """yaml.dump writes aliases for equal lists; a merged key may be given again."""
    (tmp_path / "x.yaml").write_text(
        "A: &a [1, 2]\nB: *a\nC: &c {D: 3}\nE: {<<: *c, D: 4, '1': x, 1: y}\n"
    )
    assert read_yaml(tmp_path / "x.yaml") == {
        **{"A": [1, 2], "B": [1, 2], "C": {"D": 3}},
        "E": {"D": 4, "1": "x", 1: "y"},
    }
