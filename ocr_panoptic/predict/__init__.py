import ocr_panoptic.data.published.register  # noqa: F401 - registers published data sets
import ocr_panoptic.modeling  # noqa: F401 - registers networks, heads and backbones

from . import panoptic, segfix, semantic  # noqa: F401 - adds their tasks
