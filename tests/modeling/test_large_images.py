"""Labels in windows equal the model's labels of the whole image."""

import pytest
import torch
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.modeling import OCRSemanticSegmentor, deploy, inference_model
from support.segmentors import make_cfg
from support.tiny_runs import make_labels_vary


def make_model(*opts: object) -> OCRSemanticSegmentor:
    """Build a model for whole images whose labels and regions vary on :func:`make_image`."""
    torch.manual_seed(0)
    model = build_model(make_cfg("MODEL.TIMM.NAME", "test_resnet", *opts)).eval()
    make_labels_vary(model, {"image": make_image(96, 128)})
    return model


def with_windows(model, size, stride) -> OCRSemanticSegmentor:
    model.inference.window_size, model.inference.window_stride = size, stride
    return model


def make_image(height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(1, 3, height // 8, width // 8, generator=generator)
    image = nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0]
    return (255 * image).byte()


def labelled(model: OCRSemanticSegmentor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    (output,) = model([{"image": image}])
    return output["labels"], output["confidence"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "height, width, size, stride",
    [
        (64, 96, (32, 48), (32, 48)),  # side by side
        (75, 101, (32, 48), (20, 33)),  # the last windows overlap more
        (90, 80, (40, 40), (10, 13)),  # each row of windows overlaps the previous three
        (40, 120, (64, 64), (64, 40)),  # higher than the image
        (33, 33, (64, 64), (64, 64)),
    ],
)
@pytest.mark.parametrize("flip", [False, True])
def test_bits_of_sliding_windows(height, width, size, stride, flip):
    model = with_windows(make_model("TEST.FLIP", flip), size, stride)
    image = make_image(height, width)
    with torch.inference_mode():
        expected = labelled(model, image)
        found = deploy(model, optimize=False).window_labels(image)
    assert len(expected[0].unique()) > 1
    assert all(map(torch.equal, found, expected))


def test_the_precision_of_the_model():
    model, image = with_windows(make_model(), (32, 48), (20, 33)), make_image(75, 101)
    used = deploy(model, "bfloat16")
    found = used.window_labels(image)
    assert all(map(torch.equal, found, labelled(used, image)))
    assert not torch.equal(found[1], labelled(model, image)[1])


def test_memory_holds_one_row_of_windows(monkeypatch):
    """Sums never cover the whole image."""
    model, rows = with_windows(make_model(), (32, 32), (20, 20)), []
    argmax = inference_model.confident_argmax

    def kept(groups):
        (group, *rest) = groups
        rows.append(group.shape[2])
        return argmax([group, *rest])

    monkeypatch.setattr(inference_model, "confident_argmax", kept)
    deploy(model, optimize=False).window_labels(make_image(75, 50))
    assert rows == [20, 20, 3, 32]
