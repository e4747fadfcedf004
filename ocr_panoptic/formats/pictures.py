"""Image files: one reader for preparation, training, evaluation and drawing. Label and panoptic
PNGs are opened here, too, so that all keep the same limits and name the file at fault.

Shape letters: H, W size of the image, C channels.
"""

import functools
import math
import os
import warnings
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from ocr_panoptic.errors import MissingFileError, UserError

from .array_files import NUMPY_SUFFIX, ArrayFile, open_array
from .files import local_path, printable
from .plain_png import ends_with_pixels, plain_png_colours

# Millions of pixels up to which a file is read: a few bytes can state a size that fills any memory.
# An environment variable and no config key, as preparation, training, evaluation and demo must
# agree on it, with their worker processes, and preparation has no config.
MAX_MEGAPIXELS = "OCR_PANOPTIC_MAX_MEGAPIXELS"
DEFAULT_MEGAPIXELS = 178.956970  # where Pillow refuses by itself

# Pillow warns of half the size that it refuses; of images that are wanted it need not.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
QUARTER_TURNS = (5, 6, 7, 8)  # the orientations that swap width and height
COLOURS = 3  # channels of a picture
# Formats of Pillow that are no pictures of pixels, or need another program to become one.
WITHOUT_PIXELS = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
# Photos that Pillow does not read, or whose preview it takes for the photo.
UNREAD_SUFFIXES = {
    *(".heic", ".heif", ".hif", ".jxl", ".exr", ".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf"),
    *(".pef", ".raf", ".rw2", ".srw"),
}
VIDEO_SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")
# They change the values of pixels, of which labels must have exact ones.
LOSSY = {"AVIF", "JPEG", "JPEG2000", "MPO", "WEBP"}


Color = tuple[int, int, int]  # RGB in 0..255


class TooLarge(UserError):
    """An image has more pixels than OCR_PANOPTIC_MAX_MEGAPIXELS."""


class TooThin(UserError):
    """A side of an image would be scaled to less than a pixel."""


def thin_fault(height: int, width: int, longest: float, key: str) -> str | None:
    """Return the fault of an image whose short side has less than half a pixel, which
    ``ResizeShortestEdge`` rounds to none, where its long side has ``longest``; else None.

    Args:
        key: of a config, that gives ``longest``.
    """
    if max(height, width) <= 2 * longest * min(height, width):
        return None
    return (
        f"the image of {width}x{height} pixels (width x height) is too thin: where its long side "
        f"has the {longest} pixels of {key}, the other has less than one. Crop it, or leave it out"
    )


class PictureSize(NamedTuple):
    width: int
    height: int
    note: str  # how it was turned, for messages; "" mostly


def read_picture(
    path: str | os.PathLike, format: str = "BGR", channels: int = COLOURS
) -> np.ndarray:
    """The pixels of an image file, turned as its EXIF data say.

    With 3 channels, files of 8 bits give what Detectron2's ``read_image`` gives, in colour whatever
    the file is. Of 16 bits the upper 8 are taken, as Pillow does for colours; its conversion of
    grey ones cuts them off at 255. NumPy files, and those of another number of channels, are taken
    as they are.

    Args:
        format: "BGR", "RGB", "L", or another of Detectron2's; of three channels or more, "BGR" has
            the first three of the file in reverse.
        channels: C, INPUT.CHANNELS.

    Returns:
        uint8 [H, W, 3], or [H, W, 1] for "L"; as the file has them, [H, W, C], uint8, or float32
        for any other type.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no image, is broken or truncated, has more pixels than
            OCR_PANOPTIC_MAX_MEGAPIXELS or another number of channels, values without a known white
            (mode "F", say), or, as float numbers, some that are not finite.
    """
    if _is_array(path, channels):
        return reordered(_read_channels(path, channels), format)
    if format in ("RGB", "BGR"):
        colours = plain_png_colours(local_path(path), _max_megapixels() * 1e6)
        if colours is not None:
            return reordered(colours, format)
    image = _load(path, "image")
    try:
        return _eight_bits(image, format)
    except ValueError as error:
        raise UserError(f"{printable(path)}: image {error}.") from error


def picture_pixels(image: Image.Image, format: str = "BGR", channels: int = COLOURS) -> np.ndarray:
    """The pixels of an image that Pillow has opened: what :func:`read_picture` reads of its file.

    Raises:
        ValueError: as :func:`read_picture`; the reason only.
    """
    orientation = _orientation(image)
    image = image.transpose(TURNS[orientation]) if orientation in TURNS else image
    if channels == COLOURS:
        return _eight_bits(image, format)
    return reordered(_bands(image, channels), format)


def _eight_bits(image: Image.Image, format: str) -> np.ndarray:
    if (bits := _bits(image)) > 8:
        image = Image.fromarray((np.asarray(image) >> (bits - 8)).astype(np.uint8))
    if image.mode == "RGB" and format in ("RGB", "BGR"):  # which Detectron2 copies once more
        return reordered(np.asarray(image), format)
    from detectron2.data.detection_utils import convert_PIL_to_numpy

    return convert_PIL_to_numpy(image, format)


def reordered(image: np.ndarray, format: str) -> np.ndarray:
    """[H, W, C] from RGB to a format, "RGB" or "BGR", or back: the first three channels, if there
    are as many."""
    if format != "BGR" or image.shape[2] < COLOURS:
        return image
    if image.shape[2] == COLOURS:
        return image[:, :, ::-1]
    return image[:, :, [2, 1, 0, *range(COLOURS, image.shape[2])]]


def as_colours(image: np.ndarray, format: str) -> np.ndarray:
    """Return what people see of an image as a network gets it: the first three channels, or the
    first one in grey where there are fewer. Numbers that are not uint8 are spread from the smallest
    to the largest.

    Args:
        image: uint8 or float32 [H, W, C].
        format: its order, "RGB" or "BGR".

    Returns:
        uint8 [H, W, 3] RGB.
    """
    colours = reordered(image, format)[:, :, : COLOURS if image.shape[2] >= COLOURS else 1]
    if colours.dtype != np.uint8:
        low, high = float(colours.min()), float(colours.max())
        colours = ((colours - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    return colours if colours.shape[2] == COLOURS else colours.repeat(COLOURS, axis=2)


def _is_array(path: str | os.PathLike, channels: int) -> bool:
    """Return whether the file is taken as it is, not as a picture in colour."""
    return channels != COLOURS or os.fspath(path).lower().endswith(NUMPY_SUFFIX)


def _read_channels(path: str | os.PathLike, channels: int) -> np.ndarray:
    """RGB first, where there are as many."""
    if not os.path.exists(local_path(path)):
        raise MissingFileError(f"{printable(path)}: image not found.")
    try:
        return _channels(path, channels)
    except ValueError as error:
        raise UserError(f"{printable(path)}: image {error}.") from error


def _channels(path: str | os.PathLike, channels: int) -> np.ndarray:
    """Raises ValueError with the reason only, without the name."""
    if found := _open_array(path):
        _check_channels(found.channels, channels)
        image = _turned(found.read(), found.orientation)
    else:
        picture, orientation = _open(path, decode=True)
        picture = picture.transpose(TURNS[orientation]) if orientation in TURNS else picture
        return _bands(picture, channels)
    return finite(image)


def _bands(picture: Image.Image, channels: int) -> np.ndarray:
    if picture.mode in ("1", "P"):
        picture = picture.convert({"1": "L", "P": "RGB"}[picture.mode])
    if picture.mode in ("CMYK", "YCbCr", "LAB", "HSV"):
        raise UserError(f"holds {picture.mode}, no RGB; convert it")
    _check_channels(len(picture.getbands()), channels)
    return finite(np.asarray(picture).reshape(picture.height, picture.width, -1))


def finite(image: np.ndarray) -> np.ndarray:
    """
    Returns:
        uint8, or float32 for any other type

    Raises:
        ValueError: some are not finite.
    """
    if image.dtype == np.uint8:
        return image
    image = image.astype(np.float32)
    if lost := image.size - np.count_nonzero(np.isfinite(image)):
        raise UserError(f"holds {lost} values that are no finite float32 numbers; replace them")
    return image


def _check_channels(found: int, expected: int) -> None:
    if found != expected:
        raise UserError(
            f"has {found} channels, expected {expected} (INPUT.CHANNELS, and --channels of the "
            "preparation)"
        )


def _open_array(path: str | os.PathLike) -> ArrayFile | None:
    """:func:`open_array`, of a size that may be read."""
    found = open_array(_file(path))
    if found and found.height * found.width > _max_megapixels() * 1e6:
        raise _too_large(_max_megapixels())
    return found


def _turned(image: np.ndarray, orientation: int) -> np.ndarray:
    """[H, W, C] as :data:`TURNS` has it for Pillow's images."""
    if orientation in QUARTER_TURNS:
        image = image.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return image


def load_labels(path: str | os.PathLike, kind: str) -> Image.Image:
    """A file whose values mean something, decoded and turned as its EXIF data say, in Pillow's mode
    for it.

    Args:
        kind: what it should be, for messages.

    Raises:
        FileNotFoundError, ValueError: as :func:`read_picture`, but of any mode; or the values are
            not those that were written.
    """
    image = _load(path, kind)
    if image.format in LOSSY:
        raise UserError(
            f"{printable(path)}: {kind} is a {image.format} file, whatever its name is. Its "
            "values are no longer those that were written: export a PNG."
        )
    return image


def _load(path: str | os.PathLike, kind: str) -> Image.Image:
    if not os.path.exists(local_path(path)):
        raise MissingFileError(f"{printable(path)}: {kind} not found.")
    try:
        image, orientation = _open(path, decode=True)
    except ValueError as error:
        raise UserError(f"{printable(path)}: {kind} {error}.") from error
    if orientation in TURNS:
        kept, image = image.format, image.transpose(TURNS[orientation])
        image.format = kept
    return image


@functools.cache
def image_suffixes() -> frozenset[str]:
    """Return how names of files end that are read, or are known to be images that are not."""
    known = Image.registered_extensions().items()
    found = {suffix for suffix, name in known if name in _formats() and name in Image.OPEN}
    return frozenset({*found, *UNREAD_SUFFIXES, NUMPY_SUFFIX})


def read_size(path: str | os.PathLike, channels: int = COLOURS) -> PictureSize:
    """Decode an image wholly; its size, turned as its EXIF data say.

    Raises:
        ValueError: :func:`read_picture` would not read it; the reason only, without the name.
    """
    if _is_array(path, channels):
        height, width, _ = _channels(path, channels).shape
        return PictureSize(width, height, "")
    return _size(path, decode=True)


def header_size(path: str | os.PathLike, channels: int = COLOURS) -> PictureSize:
    """:func:`read_size` from the header alone, which is quick and finds no damage after it.

    Raises:
        TooLarge: it has more pixels than are read.
        ValueError: as :func:`read_size`.
    """
    if _is_array(path, channels) and (found := _open_array(path)):
        return _turned_size(found.width, found.height, found.orientation)
    return _size(path, decode=False)


def _size(path: str | os.PathLike, decode: bool) -> PictureSize:
    image, orientation = _open(path, decode)
    _bits(image)
    return _turned_size(*image.size, orientation)


def _turned_size(width: int, height: int, orientation: int | None) -> PictureSize:
    if orientation in QUARTER_TURNS:
        note = f" once turned as its EXIF orientation {orientation} says"
        return PictureSize(height, width, note)
    return PictureSize(width, height, "")


def _open(path: str | os.PathLike, decode: bool) -> tuple[Image.Image, int | None]:
    """The image, not yet turned, and its EXIF orientation."""
    path = _file(path)
    if (suffix := os.path.splitext(path)[1].lower()) in UNREAD_SUFFIXES:
        raise UserError(f"is of a format that is not read ({suffix}); convert it to PNG or JPEG")
    limit = _max_megapixels()
    if Image.MAX_IMAGE_PIXELS is not None:  # Pillow refuses more than twice as many
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, int(limit * 1e6 / 2))
    try:
        with open(path, "rb") as file, Image.open(file, formats=_formats()) as image:
            if image.width * image.height > limit * 1e6:
                raise Image.DecompressionBombError
            if decode:
                image.load()
            has_more = image.format != "PNG" or not ends_with_pixels(file)
            return image, _orientation(image, has_more)
    except Image.DecompressionBombError as error:
        raise _too_large(limit) from error
    except MemoryError as error:
        raise UserError("needs more memory than there is") from error
    except Exception as error:  # Pillow raises what the broken bytes lead to
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "no known format" if unknown else printable(error) or type(error).__name__
        raise UserError(f"is broken or truncated ({reason}); copy or download it again") from error


def _file(path: str | os.PathLike) -> str:
    """Return the local path of a file that can be read; a pipe would be waited for."""
    path = local_path(path)
    if not os.path.isfile(path):
        raise UserError("is no regular file" if os.path.exists(path) else "was not found")
    return path


def _too_large(limit: float) -> TooLarge:
    return TooLarge(
        f"has more than {limit:.6g} megapixels; where such images are wanted, set the environment "
        f"variable {MAX_MEGAPIXELS} to a larger number"
    )


def _orientation(image: Image.Image, has_more: bool = True) -> int | None:
    """
    Args:
        has_more: whether EXIF data may come after the pixels of a PNG, which Pillow then decodes.
    """
    if image.format == "TIFF":  # which Pillow turns itself
        return None
    try:
        exif = image.getexif() if has_more else Image.Image.getexif(image)
        return exif.get(ExifTags.Base.Orientation)
    except Exception:  # broken EXIF data of a whole image
        return None


def _bits(image: Image.Image) -> int:
    """Bits of a channel of an image of any format, 8 or more.

    Raises:
        ValueError: its values may be anything; the reason only, without the name.
    """
    if image.mode.startswith("I;16"):
        tags = getattr(image, "tag_v2", {})  # a TIFF file may have 12
        return tags.get(ExifTags.Base.BitsPerSample, (16,))[0]
    if image.mode == "I" and image.format in ("PNG", "PPM"):  # 16 bits that Pillow has widened
        return 16
    if image.mode in ("I", "F"):
        kind = {"I": "32-bit integers", "F": "floating-point numbers"}[image.mode]
        raise UserError(f"holds {kind} and does not say which is white; convert it to 8 bits")
    return 8


def _max_megapixels() -> float:
    text = os.environ.get(MAX_MEGAPIXELS, str(DEFAULT_MEGAPIXELS))
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise UserError(
            f"cannot be read, as the environment variable {MAX_MEGAPIXELS} is {text!r}; expected "
            "millions of pixels, such as 400"
        )
    return limit


@functools.cache
def _formats() -> tuple[str, ...]:
    """Return Pillow's formats that hold pixels. (PostScript it would have Ghostscript run.)"""
    Image.init()
    return tuple(name for name in Image.ID if name not in WITHOUT_PIXELS)
