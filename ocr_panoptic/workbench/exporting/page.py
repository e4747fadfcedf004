"""
A web page that runs an exported model in a browser, without a server.

The page runs the model with onnxruntime-web, which is fetched from npm's registry by default.
A page that is opened from disk can load only scripts. Therefore, the model and onnxruntime-web are
stored in scripts, compressed with gzip and encoded in base64.
"""

import base64
import gzip
import hashlib
import http.client
import io
import os
import tarfile
import urllib.request
import zlib
from pathlib import Path

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import write_text
from ocr_panoptic.predict.run_onnx import METADATA_KEY, read_metadata

VERSION = "1.30.0"
"""Version of onnxruntime-web."""
REGISTRY = "https://registry.npmjs.org"
"""npm's public registry; the environment variable npm_config_registry replaces it."""
SCRIPT, BINARY = "ort.wasm.min.js", "ort-wasm-simd-threaded"
RUNTIME = {
    SCRIPT: "faece07e84faa9001f5104bbe4e5c70861d06cb2376a0dea1fa0ad33a67adc81",
    f"{BINARY}.mjs": "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
    f"{BINARY}.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
"""Name of a file of onnxruntime-web -> SHA-256 of the file."""
LARGEST = 380 * 2**20
"""Largest size of a compressed model in bytes, because browsers limit the length of a string."""


def find_runtime(given: Path | None = None) -> dict[str, bytes]:
    """
    Return the contents of the onnxruntime-web files that a page needs, by file name.

    UserError is raised if the package cannot be read or does not have the version ``VERSION``.

    Args:
        given: npm package of onnxruntime-web, a folder or a ``.tgz`` file; by default, the package
            is fetched from npm's registry.
    """
    fix = f"Get it with `npm pack onnxruntime-web@{VERSION}` and pass the file to --onnxruntime-web"
    registry = os.environ.get("npm_config_registry", REGISTRY).rstrip("/")  # noqa: SIM112
    where = given or f"{registry}/onnxruntime-web/-/onnxruntime-web-{VERSION}.tgz"
    try:
        found = _read_runtime(where)
    except (
        *(OSError, ValueError, http.client.HTTPException),
        *(KeyError, EOFError, tarfile.TarError, zlib.error),  # raised for a damaged package
    ) as error:
        raise UserError(f"onnxruntime-web cannot be read from {where}: {error}. {fix}") from error
    for name, content in found.items():
        if hashlib.sha256(content).hexdigest() != RUNTIME[name]:
            raise UserError(f"{name} in {where} is not from onnxruntime-web {VERSION}. {fix}")
    return found


def _read_runtime(where: Path | str) -> dict[str, bytes]:
    if isinstance(where, str):
        with urllib.request.urlopen(where, timeout=60) as answer:
            packed = answer.read()
    elif where.is_dir():
        return {name: (where / "dist" / name).read_bytes() for name in RUNTIME}
    else:
        packed = where.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        files = {name: archive.extractfile(f"package/dist/{name}") for name in RUNTIME}
        return {name: file.read() for name, file in files.items() if file}


def write_page(folder: Path, model: Path, runtime: dict[str, bytes]) -> None:
    """
    Write a page that runs an ONNX file in a browser; ``index.html`` is written last.

    UserError is raised if the ONNX file is too large for a browser.

    Args:
        folder: folder for the page's files.
        model: ONNX file.
        runtime: files of onnxruntime-web, from :func:`find_runtime`.
    """
    description = read_metadata(model)[METADATA_KEY]
    packed = _script("model.onnx", model.read_bytes())
    if len(packed) > LARGEST * 4 // 3:
        raise UserError(
            f"{model} is too large for a page: browsers read at most {LARGEST >> 20} MiB "
            "(compressed). Use a smaller model, or --precision int8, which quarters the size"
        )
    write_text(folder / "model.js", f"globalThis.description = {description};\n{packed}")
    binaries = [_script(name, content) for name, content in runtime.items() if name != SCRIPT]
    write_text(folder / "runtime.js", "".join(binaries))
    write_text(folder / SCRIPT, runtime[SCRIPT].decode())
    for name, source in (("page.js", "page.js"), ("index.html", "page.html")):
        text = Path(__file__).with_name(source).read_text(encoding="utf-8")
        write_text(folder / name, text)


def _script(name: str, content: bytes) -> str:
    text = base64.b64encode(gzip.compress(content, mtime=0)).decode()
    return f'(globalThis.embedded ??= {{}})["{name}"] = "{text}";\n'
