"""
Read image files, and open label and panoptic PNGs, with shared limits and error messages.

Shape letters: H, W size of the image, C channels.
"""

import functools
import os
import warnings
from contextlib import suppress
from io import BytesIO
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps, TiffImagePlugin, UnidentifiedImageError

from ocr_panoptic.errors import MissingFileError, UserError

from .files import printable

# Environment variable: largest image to read, in megapixels (default 179), because a small file can
# claim a size that fills the memory. Pillow refuses more than twice its MAX_IMAGE_PIXELS.
MAX_MEGAPIXELS = "OCR_PANOPTIC_MAX_MEGAPIXELS"
if MAX_MEGAPIXELS in os.environ:
    Image.MAX_IMAGE_PIXELS = int(float(os.environ[MAX_MEGAPIXELS]) * 1e6 / 2)
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

COLOURS = 3  # channels of a picture
CHANNELS = (1, 3, 4)  # numbers of channels that can be read: grey, RGB, RGB with opacity
QUARTER_TURNS = (5, 6, 7, 8)  # EXIF orientations that swap width and height
# Pillow's formats that hold no pixels, or that need another program.
WITHOUT_PIXELS = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
# Suffixes of photos that Pillow cannot read, or would read only the preview of.
UNREAD_SUFFIXES = {
    *(".heic", ".heif", ".hif", ".jxl", ".exr", ".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf"),
    *(".pef", ".raf", ".rw2", ".srw"),
}
VIDEO_SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")
# Formats that change the values of pixels, which labels need exactly.
LOSSY = {"AVIF", "JPEG", "JPEG2000", "MPO", "WEBP"}

_TIFF = ExifTags.Base
# Keys of notes in Pillow's ``image.info``.
_DEEP, _FOURTH = "16 bits in the file", "fourth channel in the file"

Color = tuple[int, int, int]  # RGB in 0..255


class TooThin(UserError):
    """Error for an image that would be less than one pixel high or wide after resizing."""


def thin_fault(height: int, width: int, longest: float, key: str) -> str | None:
    """
    Return an error message if an image is too thin for ``ResizeShortestEdge``, else None.

    Args:
        longest: length of the image's long side after resizing, in pixels.
        key: config key that sets ``longest``, for the message.
    """
    if max(height, width) <= 2 * longest * min(height, width):  # Detectron2 rounds 0.5 to 0
        return None
    return (
        f"the image of {width}x{height} pixels (width x height) is too thin: if its long side is "
        f"resized to {longest} pixels ({key}), its short side has less than one pixel. Crop or "
        "remove it"
    )


class PictureSize(NamedTuple):
    """The size, EXIF rotation, bit depth and brightness of an image file."""

    width: int
    height: int
    note: str  # how EXIF rotates the image, for messages; usually ""
    bits: int  # bits per channel in the file, 8 or more
    brightness: float | None  # highest value as a share of white; None if it was not read
    is_turned: bool  # whether EXIF rotates or mirrors the image and keeps its width and height


def read_picture(
    path: str | os.PathLike | IO[bytes], format: str = "BGR", channels: int = COLOURS
) -> np.ndarray:
    """
    Read the pixels of an image file or an open binary file, rotated by its EXIF orientation.

    With 3 channels, grey files become colour images, 8-bit files give the same pixels as
    Detectron2's ``read_image``, and 16-bit values lose their lower 8 bits. With 1 or 4 channels,
    the file must have the same number of channels. UserError is raised for broken or truncated
    files, and for pixel values of unknown range, such as floats.

    Args:
        format: "BGR", "RGB", "L", or another format that Detectron2 accepts; with 4 channels, "BGR"
            reverses the first three.
        channels: number of channels, C (1, 3 or 4).

    Returns:
        uint8 [H, W, C], or [H, W, 1] for "L"; float32 [H, W, 1] for a 16-bit grey file if
        ``channels`` is 1.
    """
    image = _load(path, "image")
    try:
        return picture_pixels(image, format, channels)
    except ValueError as error:
        raise UserError(f"{printable(path)}: the image {error}.") from error


def picture_pixels(image: Image.Image, format: str = "BGR", channels: int = COLOURS) -> np.ndarray:
    """
    Convert an opened image to the array that :func:`read_picture` returns for its file.

    Error messages do not name the file.
    """
    _check(image, channels)
    image = _upright(image)
    if channels != COLOURS:
        pixels = np.asarray(image).reshape(image.height, image.width, channels)
        return reordered(pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32), format)
    if (bits := _bits(image)) > 8:
        image = Image.fromarray((np.asarray(image) >> (bits - 8)).astype(np.uint8))
    if image.mode == "RGB" and format in ("RGB", "BGR"):  # Detectron2 would make another copy
        return reordered(np.asarray(image), format)
    from detectron2.data.detection_utils import convert_PIL_to_numpy

    return convert_PIL_to_numpy(image, format)


def reordered(image: np.ndarray, format: str) -> np.ndarray:
    """Return an image [H, W, C]; if ``format`` is "BGR" and C >= 3, red and blue are swapped."""
    if format != "BGR" or image.shape[2] < COLOURS:
        return image
    if image.shape[2] == COLOURS:
        return image[:, :, ::-1]
    return image[:, :, [2, 1, 0, *range(COLOURS, image.shape[2])]]


def color_codes(image: Image.Image) -> np.ndarray:
    """Return each pixel's colour as the number R + 256 G + 65536 B, uint32 [H, W]."""
    import cv2  # takes a third of NumPy's time

    four = cv2.cvtColor(np.asarray(image.convert("RGB")), cv2.COLOR_RGB2RGBA)
    return four.view("<u4")[..., 0] & 0xFFFFFF


def as_colours(image: np.ndarray, format: str) -> np.ndarray:
    """
    Convert a network's input image, uint8 or float32 [H, W, C], to RGB, uint8 [H, W, 3].

    The result shows the first three channels, or the first channel in grey if C is less than 3.
    Floats are scaled so that the smallest becomes 0 and the largest 255.
    """
    colours = reordered(image, format)[:, :, : COLOURS if image.shape[2] >= COLOURS else 1]
    if colours.dtype != np.uint8:
        low, high = float(colours.min()), float(colours.max())
        colours = ((colours - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    return colours if colours.shape[2] == COLOURS else colours.repeat(COLOURS, axis=2)


def load_labels(path: str | os.PathLike, kind: str, allow_jpeg: bool = False) -> Image.Image:
    """
    Return a label file as a Pillow image, rotated by its EXIF orientation.

    Args:
        kind: description of the file in messages, such as "panoptic PNG".
        allow_jpeg: whether to accept JPEG files, whose values are only near the original labels.
    """
    image = _load(path, kind)
    kept, image = image.format, _upright(image)
    if kept in LOSSY and not (allow_jpeg and kept == "JPEG"):
        raise UserError(lossy_fault(path, kind, kept))
    image.format = kept
    return image


def lossy_fault(path: str | os.PathLike, kind: str, format: str) -> str:
    """Return the error message for a label file in a lossy format."""
    return (
        f"{printable(path)}: the {kind} is in {format} format (whatever its suffix), which "
        "changes pixel values. Export it as PNG."
    )


def _load(path: str | os.PathLike | IO[bytes], kind: str) -> Image.Image:
    try:
        return _open(path)
    except ValueError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise MissingFileError(f"{printable(path)}: {kind} not found.") from error
        raise UserError(f"{printable(path)}: the {kind} {error}.") from error


def read_size(path: str | os.PathLike, channels: int = COLOURS, decode: bool = True) -> PictureSize:
    """
    Check an image, and return its size after its EXIF rotation; errors do not name the file.

    Args:
        channels: required number of channels, except that 3 accepts any number.
        decode: whether to decode all pixels, which takes time but finds damage.
    """
    image = _open(path, decode)
    _check(image, channels)
    size, note, bits = image.size, "", _bits(image)
    turns = (orientation := _orientation(image, decode)) in range(2, 9)
    if orientation in QUARTER_TURNS:
        size, note = size[::-1], f" after rotation by its EXIF orientation {orientation}"
        note += " (if it was annotated without rotation, remove the EXIF data)"
    brightness = None
    if decode and image.format != "JPEG":  # a JPEG has 8 bits
        grey = image if bits > 8 else image.convert("L")
        brightness = int(np.max(np.asarray(grey))) / (2**bits - 1)
    bits = 16 if image.info.get(_DEEP) else bits
    return PictureSize(*size, note, bits, brightness, turns and size == image.size)


def header_size(path: str | os.PathLike, channels: int = COLOURS) -> PictureSize:
    """Check an image, and return its size after its EXIF rotation, without decoding its pixels."""
    return read_size(path, channels, decode=False)


def local_path(path: str | os.PathLike) -> str:
    """Return a path unchanged, or the local copy of a URL, which Detectron2 downloads once."""
    path = os.fspath(path)
    if "://" not in path:
        return path
    from detectron2.utils.file_io import PathManager

    return PathManager.get_local_path(path)


def _open(source: str | os.PathLike | IO[bytes], decode: bool = True) -> Image.Image:
    suffix = ""
    if isinstance(source, str | os.PathLike):
        source = local_path(source)
        if not os.path.exists(source):
            raise UserError("was not found") from FileNotFoundError(source)
        suffix = os.path.splitext(source)[1]
    if suffix.lower() in UNREAD_SUFFIXES:
        raise UserError(
            f"has the format {suffix}, which cannot be read. Convert such photos to JPEG, for "
            f"example with ImageMagick: magick mogrify -format jpg *{suffix}"
        )
    pages: list[Any] = []
    try:
        if not isinstance(source, str) and source.seekable():
            source.seek(0)
        with open(source, "rb") if isinstance(source, str) else BytesIO(source.read()) as file:
            pages = _tiff_pages(file)
            with Image.open(file, formats=_formats()) as image:
                image.info[_DEEP] = ";16" in str(image.tile)  # Pillow reads 8 of 16 bits
                image.info[_FOURTH] = "RGBX" in str(image.tile)  # Pillow leaves the channel out
                if decode:
                    image.load()
    except Image.DecompressionBombError as error:
        raise UserError(
            f"has more than {2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6:.6g} megapixels. To read "
            f"larger images, set the environment variable {MAX_MEGAPIXELS} to a higher limit"
        ) from error
    except Exception as error:  # Pillow raises various errors for broken bytes
        unknown = isinstance(error, UnidentifiedImageError)
        if isinstance(error, OSError) and error.errno:  # such as missing permissions
            raise UserError(f"cannot be read ({error.strerror})") from error
        if unknown and pages:
            *_, channels, bits = pages[0]
            raise UserError(
                f"is a {channels}-channel TIFF file with {bits} bits per channel, which cannot be "
                "read. Save 1, 3 or 4 channels of 8 bits"
            ) from error
        if unknown:
            what = "is in an unknown format, broken or truncated. Save it as PNG, or copy it again"
            raise UserError(what) from error
        reason = printable(error) or type(error).__name__
        raise UserError(f"is broken or truncated ({reason}). Copy or download it again") from error
    if len(pages) > 1:
        raise UserError(
            f"has {len(pages)} pages of {image.width}x{image.height} pixels, so it may be a stack "
            "or separate channels. Save a single page, or merge the channels into one page"
        )
    return image


def _tiff_pages(file: IO[bytes]) -> list[Any]:
    """Return the tags of each page of a TIFF file, without previews and masks; [] for others."""
    pages: list[Any] = []
    head = file.read(8)
    with suppress(Exception):  # a broken file has fewer pages
        head += file.read(8) if 43 in head[2:4] else b""  # a BigTIFF file
        tags, seen = TiffImagePlugin.ImageFileDirectory_v2(head), {0}
        while (place := tags.next) not in seen:
            seen.add(place)
            file.seek(place)
            tags = TiffImagePlugin.ImageFileDirectory_v2(head)
            tags.load(file)
            size = [tags.get(k) for k in (_TIFF.ImageWidth, _TIFF.ImageLength)]
            # NewSubfileType has bit 1 for a preview and bit 4 for a mask.
            if not (tags.get(_TIFF.NewSubfileType, 0) & 5 or pages and size != pages[0][:2]):
                bits = max(tags.get(_TIFF.BitsPerSample, (1,)))
                pages.append([*size, tags.get(_TIFF.SamplesPerPixel, 1), bits])
    file.seek(0)
    return pages


def _orientation(image: Image.Image, decoded: bool = True) -> int | None:
    if image.format == "TIFF":  # Pillow turns it itself
        return None
    try:
        # A PNG's own method would decode the pixels to look for EXIF data after them.
        exif = image.getexif() if decoded else Image.Image.getexif(image)
        return exif.get(ExifTags.Base.Orientation)
    except Exception:  # broken EXIF data in an intact image
        return None


def _upright(image: Image.Image) -> Image.Image:
    return ImageOps.exif_transpose(image) if _orientation(image) in range(2, 9) else image


def _check(image: Image.Image, channels: int) -> None:
    """Raise UserError if an image cannot be read with this number of channels."""
    bits, bands = _bits(image), len(image.getbands())
    if channels == COLOURS:
        return
    if bits == 8 and image.mode not in ("L", "RGB", "RGBA", "LA"):
        raise UserError(f"has the colour mode {image.mode}; expected grey or RGB. Convert it")
    if bands != channels and image.info.get(_FOURTH):
        raise UserError(
            "has a fourth channel of unspecified kind (TIFF tag ExtraSamples is 0), which cannot "
            "be read. Save it as a TIFF with ExtraSamples 2 (alpha), or as a PNG"
        )
    if bands != channels:
        raise UserError(
            f"has {bands} channel{'s' * (bands > 1)}, expected {channels} (INPUT.CHANNELS, or "
            "channels in the data file)"
        )


def _bits(image: Image.Image) -> int:
    if image.mode.startswith("I;16"):
        tags = getattr(image, "tag_v2", {})  # a TIFF file may have 12 bits
        return tags.get(ExifTags.Base.BitsPerSample, (16,))[0]
    if image.mode == "I" and image.format in ("PNG", "PPM"):  # Pillow widens 16 bits to 32
        return 16
    if image.mode in ("I", "F"):
        kind = {"I": "32-bit integers", "F": "floating-point numbers"}[image.mode]
        raise UserError(f"contains {kind}, whose range is unknown. Convert it to 8 bits")
    return 8


@functools.cache
def image_suffixes() -> frozenset[str]:
    """Return the suffixes of image files, including photos that Pillow cannot read."""
    formats = Image.registered_extensions().items()
    suffixes = {suffix for suffix, name in formats if name in _formats() and name in Image.OPEN}
    return frozenset({*suffixes, *UNREAD_SUFFIXES})


@functools.cache
def _formats() -> tuple[str, ...]:
    """Return the names of Pillow's formats, except formats in ``WITHOUT_PIXELS``."""
    Image.init()
    return tuple(name for name in Image.ID if name not in WITHOUT_PIXELS)
