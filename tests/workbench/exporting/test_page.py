"""The page of an exported model in Chromium, compared with the runner, and faults of its files."""

import base64
import gzip
import hashlib
import io
import json
import re
import shutil
import tarfile

import numpy as np
import pytest
from onnxscript import FLOAT, INT32, UINT8, script
from onnxscript import opset18 as op
from PIL import Image

from ocr_panoptic import cli
from ocr_panoptic.cli import export as cli_export
from ocr_panoptic.predict import run_onnx
from ocr_panoptic.workbench.exporting import page
from support.browser import Browser, find_chromium
from support.exported_models import PANOPTIC, assert_json_close, build, export
from support.tiny_runs import OCR_CONFIG, images_of, pixels

STATUS = "document.getElementById('status').textContent"
FILES = "document.getElementById('files')"
DROPS_ARE_KEPT = """["dragover", "drop"].every((type) => !document.body.dispatchEvent(
    new DragEvent(type, { bubbles: true, cancelable: true })))"""
PIXELS, LABELS, CONFIDENCES = UINT8["H", "W", 3], INT32["H", "W"], FLOAT["H", "W"]
in_browser = pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def runtime() -> dict[str, bytes]:
    try:
        return page.find_runtime()
    except ValueError as error:
        pytest.skip(str(error))


@script(default_opset=op)
def by_red(image: PIXELS) -> tuple[LABELS, CONFIDENCES]:
    """Return the upper bit of red as the label, and green as the confidence."""
    red, green, _ = op.Split(op.Cast(image, to=FLOAT.dtype), num_outputs=3, axis=2)
    labels = op.Cast(op.Squeeze(red, [2]) >= 128.0, to=INT32.dtype)
    confidences = op.Squeeze(green, [2]) / 255.0
    return labels, confidences


@pytest.fixture
def model(tmp_path):
    classes = [{"name": name, "color": [9, 9, i]} for i, name in enumerate(("dark", "<b>red"))]
    found = by_red.to_model_proto()
    description = {"format": run_onnx.FORMAT, "classes": classes}
    found.metadata_props.add(key=run_onnx.METADATA_KEY, value=json.dumps(description))
    path = tmp_path / "model.onnx"
    path.write_bytes(found.SerializeToString())
    return path


def photo(path):
    colours = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    Image.fromarray(colours).save(path)
    return path


def assert_saves_as_the_runner(model, images, runtime, folder):
    """Choose the images in Chromium, save, and compare with the files of run_onnx.py."""
    page.write_page(folder / "page", model, runtime)
    arguments = [model, "--input", *images, "--output", folder / "expected"]
    assert run_onnx.main([*map(str, arguments)]) == 0
    (folder / "profile").mkdir()
    with Browser(folder / "page/index.html", folder / "profile") as browser:
        assert browser.wait_for(f"{STATUS} != 'Loading the model ...' && {STATUS}") == "Ready."
        browser.choose(FILES, *images)
        browser.wait_for(f"document.querySelectorAll('section').length == {len(images)}")
        loaded = browser.evaluate("performance.getEntriesByType('resource').map((e) => e.name)")
        assert all(re.match(r"(blob:)?(file|null)", name) for name in loaded), loaded
        browser.evaluate("document.querySelectorAll('.save').forEach((e) => e.click())")
        for number, image in enumerate(images):
            saved = browser.wait_for_file(folder / "profile" / f"{image.stem}.json")
            picture = browser.wait_for_file(saved.with_suffix(".png"))
            kind = "panoptic" if (folder / "expected/panoptic").exists() else "labels"
            rgb = np.asarray(Image.open(picture).convert("RGB")).astype(int)
            expected = pixels(folder / "expected" / kind / f"{image.stem}.png")
            assert np.array_equal(rgb @ [1, 256, 65536] if kind == "labels" else rgb, expected)
            entries = json.loads((folder / "expected" / f"{kind}.json").read_text())
            own = {"images": [entries["images"][number]]}  # of all images
            if kind == "panoptic":
                own["images"][0]["id"] = 1
                own["annotations"] = [entries["annotations"][number] | {"image_id": 1}]
            assert_json_close(json.loads(saved.read_text()), entries | own)
        return browser.evaluate("document.querySelector('tbody').innerHTML")


@in_browser
@pytest.mark.slow
def test_panoptic_model_in_a_browser(tiny_data, tmp_path, runtime):
    first, second, *_ = images_of(tiny_data)
    images = [tmp_path / "first.png", tmp_path / "second.png"]
    Image.open(first).save(images[0])
    Image.open(second).resize((150, 90)).save(images[1])
    network = build(OCR_CONFIG, PANOPTIC, first)
    model = export(OCR_CONFIG, PANOPTIC, tmp_path, network)
    assert_saves_as_the_runner(model, images, runtime, tmp_path)


@in_browser
@pytest.mark.slow
def test_semantic_model_in_a_browser(tmp_path, model, runtime):
    table = assert_saves_as_the_runner(model, [photo(tmp_path / "a.png")], runtime, tmp_path)
    assert "&lt;b&gt;red" in table, "class names are text"


@in_browser
@pytest.mark.slow
def test_camera_and_files_that_are_not_images(tmp_path, model, runtime):
    page.write_page(tmp_path / "page", model, runtime)
    (tmp_path / "no.png").write_text("no image")
    with Browser(tmp_path / "page/index.html", tmp_path) as browser:
        browser.wait_for(f"{STATUS} == 'Ready.'")
        browser.choose(FILES, tmp_path / "no.png", photo(tmp_path / "a.png"))
        browser.wait_for("!!document.querySelector('.error')")
        assert browser.evaluate(STATUS) == "no.png is no image that this browser reads."
        assert browser.evaluate("document.querySelector('h2').textContent") == "a.png"
        assert browser.evaluate(f"{FILES}.value") == "", "the same file can be chosen again"
        browser.click("document.getElementById('camera')")
        browser.wait_for("!document.getElementById('video').hidden")
        assert browser.evaluate("document.getElementById('video').readyState >= 2"), "a picture"
        browser.click("document.getElementById('camera')")
        browser.wait_for("document.querySelectorAll('section').length == 2")
        assert browser.evaluate("document.querySelector('h2').textContent").startswith("camera 20")


NO_MODEL = f'embedded["model.onnx"] = "{base64.b64encode(gzip.compress(b"no model")).decode()}"'


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "before", "message"),
    [
        *(
            (name, lambda text: text[:-200], "", f"{name} is missing or damaged. Copy the whole")
            for name in ("model.js", "runtime.js", page.SCRIPT)
        ),
        ("model.js", lambda text: f"{text};{NO_MODEL};", "", "protobuf parsing failed"),
        ("model.js", str, "WebAssembly.validate = () => false", "This browser is too old: it has"),
    ],
)
def test_faults_are_one_line(tmp_path, model, runtime, name, change, before, message):
    page.write_page(tmp_path / "page", model, runtime)
    file = tmp_path / "page" / name
    file.write_text(change(file.read_text()))
    with Browser(tmp_path / "page/index.html", tmp_path, before=before) as browser:
        browser.wait_for("!!document.querySelector('.error')")
        said = browser.evaluate(STATUS)
        assert browser.evaluate(DROPS_ARE_KEPT), "else the browser leaves the page for the photo"
    assert message in said and "\n" not in said


def packed(content: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in page.RUNTIME:
            entry = tarfile.TarInfo(f"package/dist/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "package: .*No such file.*npm pack onnxruntime-web@"),
        (b"text", "package: not a gzip file. Get it with `npm pack"),
        (packed(bytes(range(256)) * 40)[:415], "package: .* ended"),
        (packed(b"another"), "ort.wasm.min.js in .*package is not from onnxrun"),
    ],
)
def test_refused_packages(tmp_path, content, message):
    if content:
        (tmp_path / "package").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        page.find_runtime(tmp_path / "package")


def test_package_from_a_folder_and_from_the_registry(tmp_path, monkeypatch):
    digest = hashlib.sha256(b"content").hexdigest()
    monkeypatch.setattr(page, "RUNTIME", dict.fromkeys(page.RUNTIME, digest))
    (tmp_path / "folder/dist").mkdir(parents=True)
    for name in page.RUNTIME:
        (tmp_path / "folder/dist" / name).write_bytes(b"content")
    expected = dict.fromkeys(page.RUNTIME, b"content")
    assert page.find_runtime(tmp_path / "folder") == expected
    archive = tmp_path / "onnxruntime-web/-" / f"onnxruntime-web-{page.VERSION}.tgz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(packed(b"content"))
    monkeypatch.setenv("npm_config_registry", f"{tmp_path.as_uri()}/")
    assert page.find_runtime() == expected
    monkeypatch.setenv("npm_config_registry", (tmp_path / "nothing").as_uri())
    with pytest.raises(ValueError, match="cannot be read from file:.*nothing/onnxruntime-web"):
        page.find_runtime()


def test_page_by_the_program(tmp_path, model, monkeypatch, capsys):
    """Wrong arguments are refused before the export, which takes minutes."""
    content = dict.fromkeys(page.RUNTIME, b"content")
    monkeypatch.setattr(page, "find_runtime", lambda given: content)
    monkeypatch.setattr(cli_export, "_export", lambda *given: shutil.copy(model, given[2]))
    (tmp_path / "config.yaml").write_text("VERSION: 2\n")

    def export_page(*given: object) -> None:
        named = ["--config-file", tmp_path, "--output", tmp_path / "new.onnx", *given]
        cli.call("export", [*map(str, named)])

    with pytest.raises(ValueError, match="--page .*model.onnx is a file"):
        export_page("--page", model)
    with pytest.raises(ValueError, match="also needs --page"):
        export_page("--onnxruntime-web", tmp_path)
    assert not (tmp_path / "new.onnx").exists()
    for _ in range(2):  # the second time, the page is written again
        export_page("--page", tmp_path / "page")
    assert "index.html in a browser" in capsys.readouterr().out
    names = {file.name for file in (tmp_path / "page").iterdir()}
    assert names == {"index.html", "page.js", "model.js", "runtime.js", page.SCRIPT}


def test_too_large_models(tmp_path, model, monkeypatch):
    monkeypatch.setattr(page, "LARGEST", 100)
    with pytest.raises(ValueError, match="model.onnx is too large for a page"):
        page.write_page(tmp_path / "page", model, {})
    assert not (tmp_path / "page").exists()
