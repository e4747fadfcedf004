"""What a command line names to be predicted."""

import pytest

from ocr_panoptic.prediction.inputs import ImageFiles


@pytest.mark.parametrize(
    "files, names",
    [
        (["a.jpg", "b.png"], ["a", "b"]),
        (["a.jpg", "A.png", "b.png"], ["a.jpg", "A.png", "b"]),
        (["a.jpg", "a.jpg.bmp", "a.png"], ["a.jpg", "a.jpg.bmp", "a.png"]),
        (
            ["a.jpg", "a.jpg.bmp", "a.jpg.bmp.png", "a.png"],
            ["a.jpg", "a.jpg.bmp", "a.jpg.bmp.png", "a.png"],
        ),
        (["a.jpg", "c/a.jpg", "c/a.png"], ["a", "c/a.jpg", "c/a.png"]),
        (["a.jpg", "A.jpg"], ["a.jpg", "A.jpg"]),
    ],
)
def test_names(tmp_path, files, names):
    inputs = ImageFiles(tmp_path, tmp_path, [tmp_path / file for file in files], 100)
    assert [item.name for item in inputs.items] == names
