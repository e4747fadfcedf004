"""The files that the demo reads and writes."""

import os
from pathlib import Path

import pytest

from ocr_panoptic.formats.image_sources import find_images, images_below, output_paths


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, with images in a/ and b/."""
    names = ["a/2.jpg", "a/1.PNG", "a/notes.txt", "a/deep/3.jpg", "a/deep/1.PNG", "b/1.PNG"]
    for name in (*names, "b/x[1].jpg", "b/scan", "b/scan.png", "a/.cache/2.jpg", "a/.2.jpg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "a/folder.png").mkdir()
    os.mkfifo(tmp_path / "a/pipe.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["a"], ["a/1.PNG", "a/2.jpg", "a/deep/1.PNG", "a/deep/3.jpg"]),
        (["a/*.jpg", "b/1.PNG"], ["a/2.jpg", "b/1.PNG"]),
        (["a/**/*.jpg"], ["a/2.jpg", "a/deep/3.jpg"]),
        (["b/x[1].jpg"], ["b/x[1].jpg"]),
        (["a/2.jpg", "a"], ["a/2.jpg", "a/1.PNG", "a/deep/1.PNG", "a/deep/3.jpg"]),
    ],
)
def test_inputs_are_files_folders_and_patterns(folder, entries, expected):
    assert list(find_images(entries)) == [Path(p) for p in expected]
    absolute = find_images([str(folder / entry) for entry in entries])
    assert list(absolute) == [folder / p for p in expected]


def test_what_is_left_out_is_said(folder, caplog):
    (folder / "a/gone.jpg").symlink_to("nowhere")
    (folder / "a/more").symlink_to("deep")
    (folder / "a/gone.jpg").with_name("loop.jpg").symlink_to("loop.jpg")
    find_images(["a"])
    find_images(["a/*"])
    assert {record.getMessage() for record in caplog.records} == {
        "a: 4 files are left out: 2 x a link to nothing, 1 x no file but a pipe or device, 1 x no "
        "image, by its name (.txt).",
        "a/pipe.png is no file but a pipe or device, and left out",
        "a/gone.jpg is a link to nothing, and left out",
        "a/loop.jpg is a link to nothing, and left out",
    }


def test_every_file_is_an_image_or_left_out(folder):
    """Formats that cannot be read count as images, which shows when they are read."""
    for name in ("x.gif", "x.JP2", "x.avif", "x.ppm", "x.npy", "x.heic", "x.dng", "x.zip", "x"):
        (folder / "empty" / name).touch()
    images, others = images_below(folder / "empty")
    assert {path.name for path in images} == {
        *("x.gif", "x.JP2", "x.avif", "x.ppm", "x.npy", "x.heic", "x.dng")
    }
    assert {path.name: why for path, why in others.items()} == {
        "x": "no image, by its name (no suffix)",
        "x.zip": "no image, by its name (.zip)",
    }
    for path in images:
        path.unlink()
    with pytest.raises(FileNotFoundError, match="holds no image. 2 files are left out: 1 x .*zip"):
        images_below(folder / "empty")


def test_results_in_place_of_the_images(folder):
    with pytest.raises(ValueError, match="--output a/../a: is the folder of the images.*a/results"):
        find_images(["a"], "a/../a")


def test_links_are_followed_once(folder):
    (folder / "b/more").symlink_to(folder / "a/deep")
    (folder / "b/more/loop").symlink_to(folder / "b")
    found = [str(path) for path in find_images(["b"])]
    assert found == ["b/1.PNG", "b/more/1.PNG", "b/more/3.jpg", "b/scan.png", "b/x[1].jpg"]


def test_results_among_the_images_are_no_images(folder):
    outputs = output_paths(find_images(["a"], "a/drawn"), "a/drawn")
    for path in outputs:
        path.touch()
    assert Path("a/drawn/deep/3.jpg") in outputs
    assert output_paths(find_images(["a"], "a/drawn"), "a/drawn") == outputs


@pytest.mark.parametrize("entry", ["missing.jpg", "a/*.gif", "empty"])
def test_an_input_without_images_is_named(folder, entry):
    with pytest.raises(FileNotFoundError) as error:
        find_images(["a", entry])
    assert f"--input {entry}" in str(error.value)


def test_outputs_bear_the_names_of_the_inputs(folder):
    expected = ["2.jpg", "1.PNG", "deep/1.PNG", "deep/3.jpg", "scan.png"]
    assert output_paths(find_images(["a/2.jpg", "a", "b/scan"]), "out/new") == [
        Path("out/new", name) for name in expected
    ]
    assert Path("out/new/deep").is_dir()
    assert output_paths(find_images(["a/2.jpg"]), "pictures/p.png") == [Path("pictures/p.png")]
    assert Path("pictures").is_dir()


@pytest.mark.parametrize(
    ("inputs", "output", "message"),
    [
        (["a/2.jpg", "a/1.PNG"], "p.png", "one file for 2 inputs"),
        (["a/1.PNG", "b/1.PNG"], "out", "a/1.PNG and b/1.PNG would both be out/1.PNG"),
        (["b/scan", "b/scan.png"], "out", "b/scan and b/scan.png would both be out/scan.png"),
        (["a", "b/1.PNG"], "b", "a/1.PNG and b/1.PNG would both be b/1.PNG"),
        (["a", "b/scan.png"], "b", "overwrite the input b/scan.png"),
        (["a/1.PNG"], "a", "overwrite the input a/1.PNG"),
        (["a/1.PNG"], "a/1.PNG", "overwrite the input a/1.PNG"),
    ],
)
def test_outputs_that_would_overwrite_something(folder, inputs, output, message):
    with pytest.raises(ValueError, match=message):
        output_paths(find_images(inputs), output)
