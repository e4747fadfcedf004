"""Images in bands: windows against sliding windows, tiles against the whole image at once."""

import pytest
import torch
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, Backbone, build_model
from torch import nn

from ocr_panoptic.modeling import OCRSemanticSegmentor, deploy, large_images
from ocr_panoptic.modeling.large_images import check_tiles, tile_bands, window_bands
from support.segmentors import make_cfg
from support.tiny_runs import make_labels_vary


@BACKBONE_REGISTRY.register()
class ShortSightedBackbone(Backbone):
    """Stride 8; a feature sees 15 pixels to each side of its own. Both heads' 3x3 convolutions
    and the upsampling see 8 more each: 31."""

    def __init__(self, cfg, input_shape):
        super().__init__()
        channels = [3, 8, 8, 16]
        self.convs = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(i, o, 3, stride=2, padding=1), nn.BatchNorm2d(o), nn.ReLU())
                for i, o in zip(channels, channels[1:])
            )
        )

    def forward(self, image):
        return {"features": self.convs(image)}

    def output_shape(self):
        return {"features": ShapeSpec(channels=16, stride=8)}


@BACKBONE_REGISTRY.register()
class BranchingBackbone(ShortSightedBackbone):
    """Two maps that the head resizes to one size, as HRNet's four: strides 8 and 16."""

    def __init__(self, cfg, input_shape):
        super().__init__(cfg, input_shape)
        self.coarser = nn.Conv2d(16, 16, 1, stride=2)

    def forward(self, image):
        fine = super().forward(image)["features"]
        return {"features": fine, "coarser": self.coarser(fine)}

    def output_shape(self):
        return {**super().output_shape(), "coarser": ShapeSpec(channels=16, stride=16)}


def make_model(
    *opts: object, name: str = "ShortSightedBackbone", features: tuple[str, ...] = ("features",)
) -> OCRSemanticSegmentor:
    """For whole images; labels and regions vary on those of :func:`make_image`."""
    cfg = make_cfg(
        *("MODEL.BACKBONE.NAME", name),
        *("MODEL.SEM_SEG_HEAD.IN_FEATURES", str(list(features))),
        *("MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES", str(list(features))),
        *opts,
    )
    torch.manual_seed(0)
    model = build_model(cfg).eval()
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
    """Labels and confidence of the image at once."""
    (output,) = model([{"image": image}])
    return output["labels"], output["confidence"]


def joined(bands, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and confidence of all bands, whose rows of the image are compared with it."""
    labels, confidence, rows = zip(*bands, strict=True)
    assert torch.equal(torch.cat(rows, dim=1), image)
    return torch.cat(labels), torch.cat(confidence)


class TestWindows:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "height, width, size, stride",
        [
            (64, 96, (32, 48), (32, 48)),  # side by side
            (75, 101, (32, 48), (20, 33)),  # the last ones overlap more
            (90, 80, (40, 40), (10, 13)),  # each row of windows overlaps the three before
            (40, 120, (64, 64), (64, 40)),  # higher than the image
            (33, 33, (64, 64), (64, 64)),
        ],
    )
    @pytest.mark.parametrize("flip", [False, True])
    def test_bits_of_sliding_windows(self, height, width, size, stride, flip):
        model = with_windows(make_model("TEST.FLIP", flip), size, stride)
        image = make_image(height, width)
        with torch.inference_mode():
            expected = labelled(model, image)
            bands = window_bands(model, lambda a, b: image[:, a:b], (height, width))
            found = joined(bands, image)
        assert len(expected[0].unique()) > 1
        assert all(map(torch.equal, found, expected))

    def test_bands_have_the_precision_of_the_model(self):
        """Each of them: the network runs again between two, while the caller has the last one."""
        model, image = with_windows(make_model(), (32, 48), (20, 33)), make_image(75, 101)
        used = deploy(model, "bfloat16")
        bands = used.bands(lambda: lambda a, b: image[:, a:b], (75, 101))
        found = joined(bands, image)
        assert all(map(torch.equal, found, labelled(used, image)))
        assert not torch.equal(found[1], labelled(model, image)[1])

    def test_rows_are_read_once_from_top_to_bottom(self):
        image, asked = make_image(75, 50), []

        def rows(top, bottom):
            asked.append((top, bottom))
            return image[:, top:bottom]

        list(window_bands(with_windows(make_model(), (32, 32), (20, 20)), rows, (75, 50)))
        assert asked == [(0, 32), (20, 52), (40, 72), (43, 75)]

    def test_refusals(self):
        model = make_model()
        with pytest.raises(ValueError, match="SLIDING_WINDOW is empty"):
            next(window_bands(model, None, (64, 64)))
        with_windows(model, (32, 32), (32, 32)).inference.scales = (0.5, 1.0)
        with pytest.raises(ValueError, match="own scale"):
            next(window_bands(model, None, (64, 64)))
        model.inference.scales = (1.0,)
        model.sem_seg_head.context.needs_truth = True
        with pytest.raises(ValueError, match="needs the truth"):
            next(window_bands(model, None, (64, 64)))


class TestTiles:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "scheme, residual", [("OCR", False), ("OCR", True), ("ACF-OCR", False), ("DA-OCR", False)]
    )
    @pytest.mark.parametrize("height, width, padding", [(203, 331, 0), (96, 64, 0), (200, 328, 8)])
    def test_the_whole_image_at_once(self, scheme, residual, height, width, padding):
        """The tiles' borders lie 32 pixels from what counts in them, and it sees 31."""
        opts = "MODEL.CONTEXT.NAME", scheme, "MODEL.PAD_TO_MULTIPLE", padding
        opts = *opts, "MODEL.OCR.RESIDUAL", residual
        image, model = make_image(height, width), make_model(*opts)
        with torch.inference_mode():
            labels, confidence = labelled(model, image)
            with_windows(model, (128, 160), (64, 96))
            bands = tile_bands(model, lambda: lambda a, b: image[:, a:b], (height, width))
            found_labels, found_confidence = joined(bands, image)
        assert len(labels.unique()) > 2
        torch.testing.assert_close(found_confidence, confidence, rtol=0, atol=2e-5)
        assert (found_labels != labels).float().mean() < 1e-4

    def test_other_regions_and_too_small_an_overlap_show(self):
        """The test above would fail with the regions of each tile alone."""
        image, model = make_image(203, 331), make_model()
        with torch.inference_mode():
            whole = labelled(model, image)[1]
            windows = labelled(with_windows(model, (128, 160), (64, 96)), image)[1]
            with_windows(model, (64, 96), (64, 96))
            bands = tile_bands(model, lambda: lambda a, b: image[:, a:b], (203, 331))
            tiles = joined(bands, image)[1]
        for found in (windows, tiles):
            assert (whole - found).abs().max() > 0.01

    @pytest.mark.parametrize("padding", [0, 16])
    def test_branches_of_several_strides(self, padding, monkeypatch):
        """Exact where sides are padded to the coarsest stride; else refused, as it is not: the
        head enlarges 21 columns of stride 16 to 41 of stride 8."""
        height, width = 203, 321
        image = make_image(height, width)
        model = make_model(
            *("MODEL.PAD_TO_MULTIPLE", padding),
            name="BranchingBackbone",
            features=("features", "coarser"),
        )
        with torch.inference_mode():
            confidence = labelled(model, image)[1]
            with_windows(model, (192, 224), (64, 96))

            def found() -> torch.Tensor:
                bands = tile_bands(model, lambda: lambda a, b: image[:, a:b], (height, width))
                return (joined(bands, image)[1] - confidence).abs().max()

            if padding:
                assert found() < 2e-5
                return
            with pytest.raises(ValueError, match="stride 16.*set MODEL.PAD_TO_MULTIPLE 16"):
                found()
            monkeypatch.setattr(large_images, "check_tiles", lambda model: None)
            assert found() > 1e-3

    @pytest.mark.parametrize(
        "size, stride, opts, message",
        [
            ((100, 128), (64, 64), (), r"multiples of 32"),
            ((128, 128), (128, 128), ("TEST.FLIP", True), "TEST.FLIP"),
            ((128, 128), (64, 64), ("MODEL.CONTEXT.NAME", "none"), "NoContext"),
            ((128, 128), (64, 64), ("MODEL.ALIGN_CORNERS", True), "ALIGN_CORNERS is True"),
        ],
    )
    def test_refusals(self, size, stride, opts, message):
        with pytest.raises(ValueError, match=message):
            check_tiles(with_windows(make_model(*opts), size, stride))

    @pytest.mark.slow
    def test_hrnet(self):
        """HRNet's maps of stride 32 are enlarged, and images padded to multiples of 4."""
        model = build_model(make_cfg(backbone="hrnet_w18_small"))
        with_windows(model, (128, 128), (64, 64))
        with pytest.raises(ValueError, match="multiples of 4, .* set MODEL.PAD_TO_MULTIPLE 32"):
            check_tiles(model)
        model.divisor = 32
        check_tiles(model)
