"""Files: written whole or not at all, folders that cannot be written, characters for a terminal."""

import pytest

from ocr_panoptic.formats.files import check_output_folder, printable, replacing


def test_two_temporary_names_differ(tmp_path):
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as other:
        assert one != other
        one.touch()
        other.touch()


@pytest.mark.parametrize("name", ["/proc/x", "file", "file/below"])
def test_a_folder_that_cannot_be_written(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^Output .* cannot be written \(.*\)\. Take another\.$"):
        check_output_folder(tmp_path / name, "Output", "Take another.")


def test_printable():
    assert printable("a\x1b\n\t\udc80é\\") == r"a\x1b\n\t\udc80é" + "\\"


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path):
    with (
        pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/a'"),
        replacing(tmp_path / "a") as temporary,
        open("/dev/full", "wb", buffering=0) as full,
    ):
        temporary.touch()
        full.write(b"x")
    assert not [*tmp_path.iterdir()]
