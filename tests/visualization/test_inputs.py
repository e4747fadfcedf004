"""Which files the demo reads and writes."""

from pathlib import Path

import pytest

from ocr_panoptic.visualization import find_images, output_paths


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, with images in a/ and b/."""
    for name in ("a/2.jpg", "a/1.PNG", "a/notes.txt", "a/deep/3.jpg", "b/1.PNG", "b/x[1].jpg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["a"], ["a/1.PNG", "a/2.jpg"]),
        (["a/*.jpg", "b/1.PNG"], ["a/2.jpg", "b/1.PNG"]),
        (["a/**/*.jpg"], ["a/2.jpg", "a/deep/3.jpg"]),
        (["b/x[1].jpg"], ["b/x[1].jpg"]),
        (["a/2.jpg", "a"], ["a/2.jpg", "a/1.PNG"]),
    ],
)
def test_inputs_are_files_folders_and_patterns(folder, entries, expected):
    assert find_images(entries) == [Path(p) for p in expected]
    absolute = find_images([str(folder / entry) for entry in entries])
    assert absolute == [folder / p for p in expected]


@pytest.mark.parametrize("entry", ["missing.jpg", "a/*.gif", "empty"])
def test_an_input_without_images_is_named(folder, entry):
    with pytest.raises(FileNotFoundError) as error:
        find_images(["a", entry])
    assert f"--input {entry}" in str(error.value)


def test_outputs_bear_the_names_of_the_inputs(folder):
    assert output_paths([Path("a/2.jpg"), Path("b/1.PNG")], "out/new") == [
        Path("out/new/2.jpg"),
        Path("out/new/1.PNG"),
    ]
    assert Path("out/new").is_dir()
    assert output_paths([Path("a/2.jpg")], "pictures/p.png") == [Path("pictures/p.png")]
    assert Path("pictures").is_dir()


@pytest.mark.parametrize(
    ("inputs", "output", "message"),
    [
        (["a/2.jpg", "a/1.PNG"], "p.png", "one file for 2 inputs"),
        (["a/1.PNG", "b/1.PNG"], "out", "1.PNG occurs more than once"),
        (["a/1.PNG"], "a", "overwrite the input a/1.PNG"),
        (["a/1.PNG"], "a/1.PNG", "overwrite the input a/1.PNG"),
    ],
)
def test_outputs_that_would_overwrite_something(folder, inputs, output, message):
    with pytest.raises(ValueError, match=message):
        output_paths([Path(p) for p in inputs], output)
