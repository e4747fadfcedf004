"""The published OCR models that have a name here, and the download of their files."""

import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from iopath.common.download import download

from ocr_panoptic.errors import MissingFileError, UserError

from .addresses import MODEL_NAMES, full_name, model_hint, models_folder
from .reading import is_web_page

logging.getLogger("iopath.common.download").setLevel(logging.CRITICAL)  # our errors say more


class Data(NamedTuple):
    """Data that published models were trained on."""

    title: str
    classes: int
    recipe: str  # config with the training data and the size of test images
    keys: Mapping[str, Any] = {}  # values of config keys beside the recipe


class PublishedModel(NamedTuple):
    """A published model; its name is that of its file without date, digest and version."""

    name: str
    file: str
    digest: str  # the first digits of the file's SHA-256; "" if they are not published
    address: str
    source: str  # code base, a key of LAYOUTS
    licence: str
    data: Data
    network: str  # title of the backbone
    parameters: int  # of the whole network, in millions
    miou: str  # the authors', in percent; in brackets with several scales and flips


# Code base -> licence, and address of its files.
SOURCES = {
    "mmseg": ("Apache-2.0", "https://download.openmmlab.com/mmsegmentation/v0.5/ocrnet"),
    "hrnet": ("MIT", "https://github.com/hsfzxjy/models.storage/releases/download/HRNet-OCR"),
}
_FOLDER, _W48 = "-SemanticSegmentation/ocr_", "-SemanticSegmentation/ocr_HRNet_W48_s4_"
_R_101, _ADE20K = f"Cityscapes{_FOLDER}R_101_d8_40k_bs8", f"ADE20K{_W48}150k_bs16"
_MMSEG_SIZES = {"INPUT.MIN_SIZE_TEST": 512, "INPUT.MAX_SIZE_TEST": 2048}
_LONG_SIDE = {"INPUT.MAX_SIZE_TEST": 520}
_VOC: dict[str, Any] = {
    **_MMSEG_SIZES,
    "MODEL.SEM_SEG_HEAD.NUM_CLASSES": 21,
    "DATASETS.TRAIN": ("voc2012_train",),
    "DATASETS.TEST": ("voc2012_val",),
}
# The keys of the next two tables are parts of the names of files.
_NETWORKS = {
    "_hr18s_": ("HRNet-W18-small", 6),
    "_hr18_": ("HRNet-W18", 12),
    "_hr48_": ("HRNet-W48", 70),  # HRNet-OCR's files too
    "_r101-d8_": ("ResNet-101", 56),
}
_DATA = {
    "_cityscapes": Data("Cityscapes", 19, f"Cityscapes{_W48}40k_bs8"),
    "_ade20k_20": Data("ADE20K", 150, _ADE20K, _MMSEG_SIZES),
    "_voc12aug": Data("PASCAL VOC 2012", 21, _ADE20K, _VOC),
    "_cs_8162": Data("Cityscapes", 19, f"Cityscapes{_W48}40k_bs8"),
    "_cs_trainval": Data("Cityscapes train + val", 19, f"Cityscapes{_W48}trainval_100k_bs8"),
    "_pascal_ctx": Data("PASCAL-Context", 59, f"PASCAL-Context{_W48}30k_bs16", _LONG_SIDE),
    "_lip": Data("LIP", 20, f"LIP{_W48}100k_bs32"),
    "_cocostuff": Data("COCO-Stuff 10k", 171, f"COCO-Stuff{_W48}10k_60k_bs16", _LONG_SIDE),
    "_ade20k_4451": Data("ADE20K", 150, _ADE20K, _LONG_SIDE),
}
_FILES = """
ocrnet_hr18s_4xb2-40k_cityscapes-512x1024_20230227_145026-6c052a14 76.61 (78.01)
ocrnet_hr18_512x1024_40k_cityscapes_20200601_033320-401c5bdd 77.72 (79.49)
ocrnet_hr48_512x1024_40k_cityscapes_20200601_033336-55b32491 80.58 (81.79)
ocrnet_hr18s_512x1024_80k_cityscapes_20200601_222735-55979e63 77.16 (78.66)
ocrnet_hr18_512x1024_80k_cityscapes_20200614_230521-c2e1dd4a 78.57 (80.46)
ocrnet_hr48_512x1024_80k_cityscapes_20200601_222752-9076bcdf 80.70 (81.87)
ocrnet_hr18s_512x1024_160k_cityscapes_20200602_191005-f4a7af28 78.45 (79.97)
ocrnet_hr18_512x1024_160k_cityscapes_20200602_191001-b9172d0c 79.47 (80.91)
ocrnet_hr48_512x1024_160k_cityscapes_20200602_191037-dfbf1b0c 81.35 (82.70)
ocrnet_r101-d8_512x1024_40k_b8_cityscapes_20200717_110721-02ac0f13 80.09
ocrnet_r101-d8_512x1024_40k_b16_cityscapes_20200723_193726-db500f80 80.30
ocrnet_r101-d8_512x1024_80k_b16_cityscapes_20200723_192421-78688424 80.81
ocrnet_hr18s_512x512_80k_ade20k_20200615_055600-e80b62af 35.06 (35.80)
ocrnet_hr18_512x512_80k_ade20k_20200615_053157-d173d83b 37.79 (39.16)
ocrnet_hr48_512x512_80k_ade20k_20200615_021518-d168c2d1 43.00 (44.30)
ocrnet_hr18s_512x512_160k_ade20k_20200615_184505-8e913058 37.19 (38.40)
ocrnet_hr18_512x512_160k_ade20k_20200615_200940-d8fcd9d1 39.32 (40.80)
ocrnet_hr48_512x512_160k_ade20k_20200615_184705-a073726d 43.25 (44.88)
ocrnet_hr18s_512x512_20k_voc12aug_20200617_233913-02b04fcb 71.70 (73.84)
ocrnet_hr18_512x512_20k_voc12aug_20200617_233932-8954cbb7 74.75 (77.11)
ocrnet_hr48_512x512_20k_voc12aug_20200617_233932-9e82080a 77.72 (79.87)
ocrnet_hr18s_512x512_40k_voc12aug_20200614_002025-42b587ac 72.76 (74.60)
ocrnet_hr18_512x512_40k_voc12aug_20200614_015958-714302be 74.98 (77.40)
ocrnet_hr48_512x512_40k_voc12aug_20200614_015958-255bc5ce 77.14 (79.71)
hrnet_ocr_cs_8162_torch11 81.6
hrnet_ocr_cs_trainval_8227_torch11 test: (82.3)
hrnet_ocr_pascal_ctx_5618_torch11 (56.2)
hrnet_ocr_lip_5648_torch04 (56.48)
hrnet_ocr_cocostuff_3965_torch04 39.7 (40.6)
hrnet_ocr_ade20k_4451_torch04 44.5 (45.5)
"""


def published_model(file: str, miou: str) -> PublishedModel:
    """Return the facts about a published model, most of which the name of its file tells."""
    name, digest = re.findall(r"(.+?)(?:_\d{8}_\d{6}-(\w{8})|_torch\d+)\.pth", file)[0]
    source, folder = ("mmseg", f"{name}/") if name.startswith("ocrnet") else ("hrnet", "")
    licence, address = SOURCES[source]
    data = next(data for part, data in _DATA.items() if part in file)
    network = next((n for part, n in _NETWORKS.items() if part in file), _NETWORKS["_hr48_"])
    if network[0] == "ResNet-101":
        data = data._replace(recipe=_R_101)
    address = f"{address}/{folder}{file}"
    return PublishedModel(name, file, digest, address, source, licence, data, *network, miou)


# Short name -> name: of each data set the model with the highest mIoU without several scales,
# among those whose file can be checked by a digest, if there are some.
SHORT_NAMES = {
    "ade20k": "ocrnet_hr48_512x512_160k_ade20k",
    "cityscapes": "ocrnet_hr48_512x1024_160k_cityscapes",
    "voc": "ocrnet_hr48_512x512_20k_voc12aug",
    "pascal_context": "hrnet_ocr_pascal_ctx_5618",
    "coco_stuff": "hrnet_ocr_cocostuff_3965",
    "lip": "hrnet_ocr_lip_5648",
}
_LINES = (line.partition(" ") for line in _FILES.strip().splitlines())
# Name -> model.
MODELS = {
    model.name: model for model in (published_model(f"{s}.pth", miou) for s, _, miou in _LINES)
}
MODEL_NAMES |= SHORT_NAMES | {name: name for name in MODELS}


def find_published(name: str) -> PublishedModel:
    """Return the published model with a name or an address; raise MissingFileError without one."""
    model = MODELS.get(full_name(name))
    if model is None:
        raise MissingFileError(
            f"There is no model {name}.{model_hint(name)} `ocr-panoptic models` lists the names."
        )
    return model


@contextmanager
def published_file(model: PublishedModel) -> Iterator[Path]:
    """
    Yield the path of a model's published file; the caller holds the model's lock.

    If the file is absent, it is downloaded, and after the ``with`` block it is moved to the folder
    of models. After an error there, or if the process ends early, it is not there.

    Raises:
        MissingFileError: the file could not be downloaded.
        UserError: the file has another digest.
    """
    file = models_folder() / model.file
    if file.is_file():
        _check_digest(file, model, f"{file}", f"Replace it with the file at {model.address}")
        yield file
        return
    by_hand = f"download the file from that address on another machine, and put it at {file}"
    folder = file.with_name(f".{model.name}")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    try:
        try:
            new = Path(download(model.address, str(folder), filename=model.file))
        except Exception as error:  # from urllib, http.client, the disk ...
            raise MissingFileError(
                f"The model {model.name} could not be downloaded from {model.address} ({error}). "
                f"Check the network and the free disk space, or {by_hand}."
            ) from error
        _check_digest(new, model, model.address, f"Check the network, or {by_hand}")
        yield new
        new.replace(file)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_digest(file: Path, model: PublishedModel, origin: str, fix: str) -> None:
    digest = sha256_of(file)
    if not digest.startswith(model.digest):
        found = "is a web page" if is_web_page(file) else f"has {digest[:8]}..."
        raise UserError(
            f"The file of the model {model.name} must have the SHA-256 {model.digest}..., but "
            f"{origin} {found} ({file.stat().st_size} bytes). {fix}."
        )


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    digest = sha256()
    with open(file, "rb") as content:
        while block := content.read(2**20):
            digest.update(block)
    return digest.hexdigest()
