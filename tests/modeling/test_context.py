"""The registry of context schemes, and the config keys that each scheme reads."""

import pytest
import torch

from ocr_panoptic.layers import ContextScheme
from ocr_panoptic.modeling.context import (
    CONTEXT_SCHEMES,
    build_context,
    schemes_reading,
)
from support.segmentors import make_cfg

# A value other than the default for every key that a scheme reads.
CHANGES = {
    "MODEL.OCR.CHANNELS": 64,
    "MODEL.OCR.KEY_CHANNELS": 24,
    "MODEL.OCR.TRANSFORM_CONVS": 1,
    "MODEL.OCR.SCALE_RELATION": False,
    "MODEL.OCR.DROPOUT": 0.9,
    "MODEL.OCR.NORM": "FrozenBN",
    "MODEL.OCR.NEGATIVE_SLOPE": 0.5,
    "MODEL.SEM_SEG_HEAD.NUM_CLASSES": 7,
    "MODEL.CONTEXT.TRUE_PART": "gather",
    "MODEL.CONTEXT.ENCODER_SELF_ATTENTION": True,
    "MODEL.CONTEXT.DECODER_SELF_ATTENTION": "before",
    "MODEL.CONTEXT.JOINT_BLOCKS": 3,
    "MODEL.CONTEXT.DILATIONS": [1, 2, 3],
    "MODEL.CONTEXT.NUM_REGIONS": 8,
}


def build(*opts: object) -> ContextScheme:
    torch.manual_seed(0)
    return build_context(make_cfg(*opts), 48).train()


def are_equal(one: ContextScheme, other: ContextScheme) -> bool:
    """Return whether two schemes built with one seed have equal sizes and equal outputs."""
    sizes = [(s.out_channels, *(p.shape for p in s.parameters())) for s in (one, other)]
    if sizes[0] != sizes[1]:
        return False
    x = torch.linspace(-1, 1, 2 * 48 * 6 * 7).mul(99).sin().view(2, 48, 6, 7)
    m = torch.eye(5)[torch.arange(84).remainder(5)].view(2, 6, 7, 5).permute(0, 3, 1, 2)
    outputs = []
    for scheme in (one, other):
        torch.manual_seed(0)
        outputs.append(scheme(x if scheme.takes_features else x[:, :32], m))
    return torch.equal(*outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CONTEXT_SCHEMES))
def test_a_scheme_changes_only_with_the_keys_that_it_reads(name):
    base = ("MODEL.CONTEXT.NAME", name)
    assert are_equal(build(*base), build(*base))
    for key, value in CHANGES.items():
        is_read = name in schemes_reading(key)
        assert are_equal(build(*base), build(*base, key, value)) != is_read, key


def test_every_key_of_the_registry_and_of_the_config_is_tested():
    read = {key for _, keys in CONTEXT_SCHEMES.values() for key in keys.values()}
    assert not read ^ set(CHANGES), "each key of a scheme has another value in CHANGES"
    of_context = {f"MODEL.CONTEXT.{key}" for key in make_cfg().MODEL.CONTEXT}
    assert of_context - set(CHANGES) == {"MODEL.CONTEXT.NAME"}
    assert schemes_reading("MODEL.CONTEXT.NAME") == ()
