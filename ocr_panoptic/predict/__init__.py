# The imports register published data sets, networks, heads and backbones, the addresses ocr://NAME,
# and what each architecture needs.
import ocr_panoptic.data.published.register
import ocr_panoptic.modeling

from . import named_models, panoptic, segfix, semantic
