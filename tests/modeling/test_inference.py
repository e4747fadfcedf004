"""Labels of whole images, predicted by constructed networks with known logits."""

import math

import pytest
import torch
import torch.nn.functional as F
from detectron2.config import get_cfg
from detectron2.data import MetadataCatalog
from detectron2.modeling.postprocessing import sem_seg_postprocess
from detectron2.structures import ImageList
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ocr_panoptic import add_ocr_config
from ocr_panoptic.modeling import inference
from ocr_panoptic.modeling.inference import (
    SemanticInference,
    check_decided,
    confident_argmax,
    joined_rows,
    padded_batch,
    resized_classes,
    running_argmax,
    sliding_window_rows,
)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def bilinear(x: torch.Tensor, *size: int) -> torch.Tensor:
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def local(image: torch.Tensor) -> torch.Tensor:
    """Compute a network that sees single pixels, with 4 classes and output stride 1."""
    return F.conv2d(image, random(4, 3, 1, 1)).sin()


def sliding_window_scores(network, image, *args, **kwargs) -> torch.Tensor:
    return joined_rows(sliding_window_rows(network, image, *args, **kwargs), image.shape[2])


def labelled(inference: SemanticInference, *args, **kwargs) -> torch.Tensor:
    return running_argmax(inference(*args, **kwargs)())


class Counted(TorchDispatchMode):
    """A counter of operations, including views."""

    operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        return function(*args, **(kwargs or {}))


class TestLabelsOfLogits:
    @pytest.mark.parametrize(
        "shape, size",
        [
            *(((1, 19, 16, 32), (64, 130)), ((2, 5, 13, 7), (51, 200))),
            *(((1, 300, 6, 5), (17, 23)), ((1, 1, 4, 4), (8, 8))),
            *(((1, 4, 30, 40), (11, 13)), ((1, 4, 8, 8), (8, 8))),
        ],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_bit_identical_to_all_classes_at_once(self, shape, size, dtype):
        logits = random(*shape).to(dtype)
        expected = bilinear(logits.float(), *size).argmax(1)
        last = logits.to(memory_format=torch.channels_last)
        for given in (logits, last):
            labels = running_argmax(resized_classes(given, size))
            assert labels.dtype == torch.int64 and torch.equal(labels, expected)

    @pytest.mark.parametrize("at_once", [2, 4, 100])
    @pytest.mark.parametrize("classes", [1, 2, 7])
    def test_groups_of_classes(self, monkeypatch, at_once, classes):
        """Groups, as on a GPU, give equal labels, the first of equal scores, and confidence."""
        logits = 3 * random(2, classes, 6, 5)
        logits[:, classes // 2 :] = logits[:, : classes - classes // 2].clone()
        expected = bilinear(logits, 17, 23)
        monkeypatch.setattr(inference, "classes_at_once", lambda *_: at_once)
        groups = [*resized_classes(logits, (17, 23))]
        assert [group.shape[1] for group in groups[:-1]] == [at_once] * (len(groups) - 1)
        assert torch.equal(running_argmax(groups), expected.argmax(1))
        labels, confidence = confident_argmax(groups)
        assert torch.equal(labels, expected.argmax(1))
        torch.testing.assert_close(confidence, expected.softmax(1).amax(1))
        for scales in ((1.0,), (0.5, 1.0)):
            whole = SemanticInference(scales=scales)(local, random(1, 3, 9, 8), (13, 12))
            first = running_argmax(whole())
            with monkeypatch.context() as patch:
                patch.setattr(inference, "classes_at_once", lambda *_: 1)
                whole = SemanticInference(scales=scales)(local, random(1, 3, 9, 8), (13, 12))
                assert torch.equal(running_argmax(whole()), first)

    @pytest.mark.parametrize("classes", [19, 54, 150])
    def test_few_operations_on_a_gpu(self, classes, pretended_gpu):
        """An image has COCO's size; class by class there would be at least 7 for each class."""
        with FakeTensorMode():
            logits = torch.empty(1, classes, 200, 304, device="cuda")
            with Counted() as counted:
                labels, confidence = confident_argmax(
                    resized_classes(logits, (480, 640), (800, 1200), (800, 1216))
                )
            assert labels.device.type == confidence.device.type == "cuda"
        assert counted.operations < 150

    @pytest.mark.parametrize("size", [(50, 61), (100, 122), (37, 40)])
    def test_padding_as_in_detectron2(self, size):
        """An image of 50 x 61, padded to 64 x 64, is cut out before it is resized."""
        logits = random(1, 6, 16, 16)
        upsampled = F.interpolate(logits, scale_factor=4, mode="bilinear", align_corners=False)
        expected = sem_seg_postprocess(upsampled[0], (50, 61), *size).argmax(0)
        found = running_argmax(resized_classes(logits, size, (50, 61), (64, 64)))
        assert torch.equal(found[0], expected)


class TestScales:
    def test_against_loops_with_flips_strides_and_padding(self):
        def network(image):
            return F.avg_pool2d(local(image), 8)

        image, size, order = random(2, 3, 50, 61), (75, 70), [0, 1, 3, 2]
        expected = torch.zeros(2, 4, *size)
        for height, width in ((38, 46), (65, 79), (88, 107)):  # x 0.75, 1.3, 1.75
            scaled = bilinear(image, height, width)
            padded = F.pad(scaled, (0, -width % 16, 0, -height % 16))
            logits = network(padded) + network(padded.flip(-1)).flip(-1)[:, order]
            logits = bilinear(logits, *padded.shape[-2:])[..., :height, :width]
            expected += bilinear(logits, *size) / 2 / 3
        inference = SemanticInference(scales=[0.75, 1.3, 1.75], flip=True, flip_pairs=[(2, 3)])
        scores = inference.scores(network, image, size, divisor=16)
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
        labels = labelled(inference, network, image, size, divisor=16)
        assert torch.equal(labels, scores.argmax(1)) and labels.unique().numel() == 4


class TestSlidingWindow:
    def test_average_of_overlapping_windows(self):
        """Three windows of width 3 start at 0, 2 and 3 of width 6; the n-th window scores n."""
        calls = []

        def network(window):
            calls.append(window)
            return torch.full((1, 1, *window.shape[-2:]), float(len(calls)))

        image = torch.arange(6.0).expand(1, 3, 2, 6)
        scores = sliding_window_scores(network, image, (2, 3), (2, 2))
        assert [window[0, 0, 0].tolist() for window in calls] == [[0, 1, 2], [2, 3, 4], [3, 4, 5]]
        assert scores.tolist() == [[[[1, 1, 1.5, 2.5, 2.5, 3]] * 2]]

    @pytest.mark.parametrize(
        "window, stride, divisor",
        [
            *(((16, 20), (11, 13), 1), ((20, 64), (7, 64), 1), ((100, 100), (66, 66), 1)),
            *(((21, 30), (14, 20), 8), ((1, 1), (1, 1), 1)),
        ],
    )
    def test_local_network_equals_the_whole_image(self, window, stride, divisor):
        image = random(2, 3, 21, 33)
        scores = sliding_window_scores(local, image, window, stride, divisor)
        torch.testing.assert_close(scores, local(image), rtol=0, atol=1e-6)

    def test_labels_of_a_local_network_equal_those_of_the_whole_image(self):
        image = random(1, 3, 50, 61)
        whole = SemanticInference(scales=[0.5, 1, 1.5], flip=True)
        windows = SemanticInference(
            scales=[0.5, 1, 1.5], flip=True, window_size=[32, 24], window_stride=[21, 16]
        )
        seen = []

        def network(window):
            seen.append(window)
            return local(window)

        torch.testing.assert_close(
            windows.scores(network, image, (50, 61)), whole.scores(local, image, (50, 61))
        )
        assert len(seen) == 2 * (2 + 8 + 24)  # each window and its mirror image, once

    def test_low_resolution_logits_are_upsampled_in_the_padded_window(self):
        image = random(1, 3, 10, 10)

        def network(window):
            return F.avg_pool2d(local(window), 4)

        padded = F.pad(image[..., 1:], (0, 3, 0, 2))  # the second window, 10 x 9, at column 1
        second = bilinear(network(padded), 12, 12)[..., :10, :9]
        scores = sliding_window_scores(network, image, (12, 9), (12, 9), divisor=4)
        torch.testing.assert_close(scores[..., 9], second[..., 8])


class TestSemanticInference:
    def test_running_sum_is_on_the_wanted_device(self):
        """The meta device holds no numbers, but shows where a tensor would be."""
        image, elsewhere = random(1, 3, 8, 8), {"accumulator_device": "meta"}
        windows = {"window_size": (4, 4), "window_stride": (4, 4)}
        for kwargs, device in [
            ({**elsewhere, "scales": (1, 2)}, "meta"),
            ({**elsewhere, **windows}, "meta"),
            (elsewhere, "cpu"),  # a single window has no sum
            (windows, "cpu"),
        ]:
            labels = labelled(SemanticInference(**kwargs), local, image, (8, 8))
            assert labels.device.type == device and labels.shape == (1, 8, 8)

    def test_keeps_no_graph(self):
        weight = random(4, 3, 1, 1).requires_grad_()
        inference = SemanticInference(scales=[1, 2], window_size=(4, 4), window_stride=(4, 4))
        scores = inference.scores(lambda x: F.conv2d(x, weight), random(1, 3, 8, 8), (8, 8))
        assert not scores.requires_grad

    def test_config(self):
        cfg = get_cfg()
        add_ocr_config(cfg)
        cfg.DATASETS.TEST = ("pairs_of_arms",)
        image = random(1, 3, 40, 40)

        def network(x):
            return F.avg_pool2d(local(x).cumsum(-1), 4)

        def scores(*opts) -> torch.Tensor:
            changed = cfg.clone()
            changed.merge_from_list(list(opts))
            return SemanticInference(changed).scores(network, image, (40, 40))

        plain = scores()
        torch.testing.assert_close(plain, bilinear(network(image), 40, 40))
        variants = [
            plain,
            scores("TEST.SCALES", [0.5, 1.0]),
            scores("TEST.FLIP", True),
            scores("TEST.SLIDING_WINDOW.SIZE", [20, 20], "TEST.SLIDING_WINDOW.STRIDE", [20, 20]),
            scores("TEST.SLIDING_WINDOW.SIZE", [20, 20], "TEST.SLIDING_WINDOW.STRIDE", [10, 10]),
            scores("TEST.SLIDING_WINDOW.SIZE", [30, 20], "TEST.SLIDING_WINDOW.STRIDE", [10, 10]),
        ]
        MetadataCatalog.get("pairs_of_arms").flip_pairs = [(2, 3)]
        try:
            variants.append(scores("TEST.FLIP", True))
        finally:
            MetadataCatalog.remove("pairs_of_arms")
        for i, a in enumerate(variants):
            assert not any(torch.allclose(a, b) for b in variants[:i]), i
        cfg.TEST.SCALES = [1.0, 2.0]
        cfg.TEST.ACCUMULATOR_DEVICE = "meta"
        assert scores().device.type == "meta"

    @pytest.mark.parametrize(
        "arguments, message",
        [
            *(({"scales": s}, r"TEST\.SCALES is \[") for s in ([], [1.0, 0.0], [-1.0])),
            *(
                ({"window_size": a, "window_stride": b}, r"SLIDING_WINDOW has SIZE \[.*<= SIZE")
                for a, b in (([5], [5]), ([8, 8], []), ([], [8, 8]), ([8, 8], [8, 9]))
            ),
            ({"window_size": [8, 8], "window_stride": [0, 8]}, "0 < STRIDE <= SIZE"),
        ],
    )
    def test_refused_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            SemanticInference(**arguments)


@pytest.mark.parametrize("align_corners", [False, True])
def test_corners_of_logits(align_corners):
    """Images are resized by one convention, logits by the network's, also in windows."""
    image, weight = random(1, 3, 24, 32), random(5, 3, 4, 4)

    def network(x):
        return F.conv2d(x, weight, stride=4)

    def up(x, size):
        return F.interpolate(x, size=size, mode="bilinear", align_corners=align_corners)

    whole = SemanticInference(align_corners=align_corners)
    scores = up(up(network(image), (24, 32)), (48, 64))
    assert torch.allclose(whole.scores(network, image, (48, 64)), scores, atol=1e-6)
    assert torch.equal(labelled(whole, network, image, (48, 64)), scores.argmax(1))
    larger = SemanticInference(scales=(2.0,), align_corners=align_corners)
    scaled = F.interpolate(image, size=(48, 64), mode="bilinear", align_corners=False)
    expected = up(up(network(scaled), (48, 64)), (24, 32))
    assert torch.allclose(larger.scores(network, image, (24, 32)), expected, atol=1e-6)
    window = dict(window_size=(24, 32), window_stride=(24, 32))
    windows = SemanticInference(**window, align_corners=align_corners)
    expected = up(network(image), (24, 32))
    assert torch.allclose(windows.scores(network, image, (24, 32)), expected, atol=1e-6)


@pytest.mark.parametrize(
    "scores",
    [
        *((math.nan, 1, 2), (1, math.nan, 2), (2, 1, math.nan)),
        *((1, math.inf, 2), (math.inf, 1, math.inf)),
    ],
)
def test_scores_with_nan_or_infinity(scores):
    classes = [torch.full((1, 1, 2, 3), 0.5) for _ in scores]
    for of_class, score in zip(classes, scores, strict=True):
        of_class[0, 0, 1, 2] = score
    with pytest.raises(FloatingPointError, match="scores of 1 of 6 pixels are NaN or infinite"):
        check_decided(confident_argmax(classes)[1])


def test_a_class_that_is_never_predicted():
    """The logit of a class may be -inf."""
    classes = [torch.full((1, 1, 1, 1), score) for score in (0.0, -math.inf, math.log(3))]
    labels, confidence = confident_argmax(classes)
    assert labels.item() == 2 and confidence.item() == pytest.approx(0.75)


@pytest.mark.parametrize("sizes", [[(61, 83)], [(61, 83), (64, 80), (5, 96)], [(32, 32)] * 2])
@pytest.mark.parametrize("divisor, value", [(1, 0.0), (32, 0.0), (12, 255)])
@pytest.mark.parametrize("channels", [(), (3,)])
def test_images_and_labels(sizes, divisor, value, channels):
    maps = [100 * torch.rand(*channels, *size) for size in sizes]
    maps = [map_.long() for map_ in maps] if value == 255 else maps
    found = padded_batch(maps, divisor, value)
    expected = ImageList.from_tensors(maps, divisor, value).tensor
    assert found.dtype == expected.dtype and torch.equal(found, expected)
