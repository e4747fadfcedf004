"""Each rule decides as docs/planning.md says, and leaves the config alone where it must not."""

from dataclasses import replace

import pytest

from ocr_panoptic.checkpoint.published_models import find_published
from ocr_panoptic.config.files import load_config, values_by_key
from ocr_panoptic.workbench.planning import rules
from ocr_panoptic.workbench.planning.contradictions import contradictions
from ocr_panoptic.workbench.planning.fingerprint import ClassFacts, Fingerprint
from ocr_panoptic.workbench.planning.rules import Machine, Situation, base_config

CPU, GPU = Machine("cpu", 0.0, is_mixed=False), Machine("cuda", 24.0, is_mixed=True)
CLASS = ClassFacts("leaf", "stuff", images=1.0, pixels=0.5, width=0.2)
FEW = Fingerprint(
    name="few",
    files=("few.yaml",),
    kind="panoptic",
    channels=3,
    train=100,
    val=20,
    short=(400, 400, 400),
    aspect=1.5,
    classes=(CLASS, replace(CLASS, name="tree", kind="thing")),
    void=0.0,
    crowds=0.0,
    objects=(3, 10, 16),
    sides=(0.1, 0.15, 0.2, 0.25, 0.3),
    has_top=True,
    mean=(10.0, 20.0, 30.0),
    std=(1.0, 2.0, 3.0),
    light=0.1,
)
SEMANTIC = replace(FEW, kind="semantic", objects=(0, 0, 0), sides=())


def decided(rule, data, machine=CPU, given=(), **overrides) -> dict:
    cfg = load_config(base_config(data, machine)[0], overrides)
    situation = Situation(data, machine, values_by_key(cfg), {*given, *overrides})
    return {decision.key: decision.value for decision in rule(situation)}


def sizes(it: Situation):
    """Decide the sizes of images in training and at test."""
    yield from rules.image_size(it)
    yield from rules.size_at_test(it)


@pytest.mark.parametrize("rule", rules.RULES)
def test_usual_data_keep_the_config(rule):
    assert not decided(rule, FEW, GPU) or rule is rules.precision


def test_the_small_network_learns_with_adamw():
    assert decided(rules.optimizer, FEW)["SOLVER.OPTIMIZER"] == "AdamW"
    assert not decided(rules.optimizer, FEW, given=["SOLVER.OPTIMIZER"])


def test_the_config_suits_the_machine():
    assert base_config(FEW, CPU)[0].endswith("panoptic_fpn_ocr_Lite0")
    assert base_config(FEW, GPU)[0].endswith("panoptic_fpn_ocr_R_50")
    names = [base_config(SEMANTIC, Machine("cuda", m, True))[0] for m in (24, 6, 3)]
    ends = "ocr_HRNet_W48_s4", "ocr_HRNet_W18_s4", "ocr_HRNet_W18_small_s4"
    assert [name.partition("/")[2] for name in names] == [*ends]
    assert decided(rules.precision, FEW, GPU) == {"SOLVER.AMP.ENABLED": True}
    parts = [decided(rules.memory, FEW, Machine("cuda", m, True)) for m in (24, 6, 3)]
    assert parts == [{}, *({"SOLVER.ACCUMULATION_STEPS": n} for n in (2, 4))]


def test_the_start_knows_the_names():
    street = tuple(replace(CLASS, name=name) for name in ("road", "sky", "car", "dog"))
    weights = decided(rules.start, replace(SEMANTIC, classes=street), GPU)["MODEL.WEIGHTS"]
    assert find_published(weights.removeprefix("ocr://")).data.title == "Cityscapes"
    assert not decided(rules.start, replace(SEMANTIC, classes=(*street[:1], CLASS, CLASS)), GPU)
    assert not decided(rules.start, replace(SEMANTIC, classes=street), CPU)


def test_channels():
    grey = replace(SEMANTIC, channels=1, mean=(300.0,), std=(40.0,))
    assert decided(rules.channels, grey) == {
        "INPUT.CHANNELS": 1,
        "MODEL.PIXEL_MEAN": [300.0],
        "MODEL.PIXEL_STD": [40.0],
        "INPUT.BRIGHTNESS_SHIFT": 0,
    }
    usual = decided(rules.channels, replace(grey, mean=(90.0,), std=(40.0,)))
    assert usual["MODEL.PIXEL_MEAN"] == usual["MODEL.PIXEL_STD"] == [127.5]
    depth = replace(FEW, channels=4, mean=(1.0, 2.0, 3.0, 4.0), std=(5.0, 6.0, 7.0, 8.0))
    assert decided(rules.channels, depth)["MODEL.PIXEL_MEAN"] == [127.5, 127.5, 127.5, 4.0]


def test_small_objects_enlarge_the_images():
    """Objects of 0.02 x 256 = 5 pixels; 13 pixels need a shorter side of 650, rounded up to 672."""
    small = replace(FEW, sides=(0.01, 0.015, 0.02, 0.025, 0.03), short=(500, 900, 1000))
    found = decided(sizes, small)
    assert found["INPUT.MIN_SIZE_TRAIN"] == [672]
    assert found["INPUT.CROP.SIZE"] == [256, 256] and found["INPUT.CROP.AFTER_RESIZE"]
    assert "INPUT.MAX_SIZE_TEST" not in found  # 864 x 1.5 < 1333
    native = decided(sizes, replace(small, short=(400, 400, 400)))
    assert native["INPUT.MIN_SIZE_TRAIN"] == [400]  # more pixels than the image's show no more
    kept = decided(sizes, small, given=["INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"])
    assert not kept


def test_small_objects_are_found_on_larger_images():
    """Objects of 0.04 x 256 = 10 pixels; 1.25 x 256 = 320, and 1.25 x 672 = 840, rounded to 864."""
    small = replace(FEW, sides=(0.02, 0.03, 0.04, 0.05, 0.06))
    assert decided(sizes, small) == {"INPUT.MIN_SIZE_TEST": 320}
    assert not decided(sizes, replace(small, sides=(0.01, 0.03, 0.0626, 0.07, 0.1)))
    assert not decided(sizes, small, given=["INPUT.MIN_SIZE_TEST"])
    tiny = replace(small, sides=(0.01, 0.015, 0.02, 0.025, 0.03), short=(500, 900, 1000))
    assert decided(sizes, tiny)["INPUT.MIN_SIZE_TEST"] == 864
    long = decided(sizes, replace(small, aspect=5.0))
    assert long["INPUT.MAX_SIZE_TEST"] == 1600  # 320 x 5
    assert decided(rules.tiles, replace(small, aspect=7.0))  # 320 x 7 = 2,240 pixels


def test_small_images_are_not_enlarged_for_large_objects():
    """At their own 160 pixels, the median object has 0.2 x 160 = 32, twice the smallest anchor."""
    small = replace(FEW, short=(100, 160, 200))
    found = decided(sizes, small)
    assert found == {"INPUT.MIN_SIZE_TRAIN": [160], "INPUT.MIN_SIZE_TEST": 160}
    assert not decided(sizes, replace(small, short=(100, 150, 200)))
    assert not decided(sizes, small, GPU)


def test_the_users_size_is_that_of_the_evaluation():
    cfg = load_config(base_config(FEW, CPU)[0], {"INPUT.MIN_SIZE_TRAIN": (512,)})
    (size,) = sizes(Situation(FEW, CPU, values_by_key(cfg), ["INPUT.MIN_SIZE_TRAIN"]))
    assert size[:2] == ("INPUT.MIN_SIZE_TEST", 512)


def test_images_that_keep_their_size_in_training_keep_it_at_test():
    """0 keeps each image's size; the median's size would resize all others."""
    assert not decided(sizes, SEMANTIC, GPU)
    for data in (FEW, replace(FEW, sides=(0.01, 0.01, 0.02, 0.02, 0.03))):
        cfg = load_config(base_config(data, CPU)[0], {"INPUT.MIN_SIZE_TRAIN": (0,)})
        situation = Situation(data, CPU, values_by_key(cfg), ["INPUT.MIN_SIZE_TRAIN"])
        (size,) = sizes(situation)
        assert size == ("INPUT.MIN_SIZE_TEST", 0, "as in training")
    assert decided(rules.tiles, replace(SEMANTIC, aspect=10.0), GPU)  # 400 x 10 = 4,000 pixels


def test_long_images_keep_their_size():
    found = decided(sizes, replace(FEW, aspect=10.0))
    assert found["INPUT.MAX_SIZE_TRAIN"] == found["INPUT.MAX_SIZE_TEST"] == 2560
    assert found["INPUT.CROP.SIZE"] == [256, 256] and "INPUT.MIN_SIZE_TEST" not in found
    found = decided(sizes, replace(FEW, aspect=2.0), GPU)  # 640 to 800, mostly 736
    assert not {"INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"} & found.keys()
    assert found["INPUT.MAX_SIZE_TRAIN"] == found["INPUT.MAX_SIZE_TEST"] == 1600
    wide = replace(FEW, aspect=16 / 9)  # 736 x 16 / 9 < 1333, so the config's limits stay
    assert not decided(sizes, wide, GPU)
    found = decided(sizes, replace(wide, sides=(0.01, 0.015, 0.02, 0.025, 0.03)), GPU)
    assert found == {"INPUT.MIN_SIZE_TEST": 928, "INPUT.MAX_SIZE_TEST": 1650}


def test_large_images_are_predicted_in_tiles():
    """Tiles of 768 pixels and an overlap of a large object's side, 0.3 x 256 = 77, but 192."""
    found = decided(rules.tiles, replace(FEW, aspect=10.0))
    assert found["TEST.SLIDING_WINDOW.SIZE"] == [960, 960]
    assert found["TEST.SLIDING_WINDOW.STRIDE"] == [768, 768]
    large = replace(FEW, aspect=10.0, sides=(0.1, 0.2, 0.3, 0.5, 1.0))
    assert decided(rules.tiles, large)["TEST.SLIDING_WINDOW.SIZE"] == [1024, 1024]


def test_the_users_values_at_test_are_heeded():
    """A shorter side of 1,400 is a longer one of 2,100, for images 1.5 times as long as wide."""
    size = {"INPUT.MIN_SIZE_TEST": 1400}
    assert decided(sizes, FEW, **size) == {"INPUT.MAX_SIZE_TEST": 2100}
    assert not decided(rules.tiles, FEW)
    assert decided(rules.tiles, FEW, **size)["TEST.SLIDING_WINDOW.STRIDE"] == [768, 768]
    found = decided(rules.objects, FEW, **{"TEST.DETECTIONS_PER_IMAGE": 500})
    assert found == {"MODEL.RPN.POST_NMS_TOPK_TEST": 1000}


def test_thin_classes_enlarge_images_without_an_upper_side():
    thin = replace(SEMANTIC, classes=(CLASS, replace(CLASS, width=0.03)), short=(900, 900, 900))
    found = decided(sizes, replace(thin, has_top=False))
    assert found["INPUT.MIN_SIZE_TRAIN"] == [512] and "INPUT.CROP.SIZE" not in found
    wide = replace(thin, has_top=False, classes=(CLASS,))
    assert not decided(sizes, wide)
    assert not decided(sizes, replace(wide, classes=(CLASS,) * 3 + thin.classes))
    assert not decided(sizes, thin)


def test_objects_ask_for_regions_and_detections():
    assert decided(rules.objects, replace(FEW, objects=(2, 16, 60))) == {}
    crowded = decided(rules.objects, replace(FEW, objects=(26, 147, 375)))
    assert crowded == {
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 256,
        "MODEL.RPN.POST_NMS_TOPK_TRAIN": 1000,
        "TEST.DETECTIONS_PER_IMAGE": 450,
        "MODEL.RPN.POST_NMS_TOPK_TEST": 900,
    }
    some = decided(rules.objects, replace(FEW, objects=(9, 20, 30)))
    assert some == {
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 128,
        "MODEL.RPN.POST_NMS_TOPK_TRAIN": 512,
    }
    assert decided(rules.objects, replace(FEW, objects=(26, 147, 375)), GPU).keys() == {
        "TEST.DETECTIONS_PER_IMAGE"
    }
    assert not decided(rules.objects, SEMANTIC)
    # Images that keep their 160 pixels have no crops, so 16 objects need 64 regions.
    assert not decided(rules.objects, replace(FEW, objects=(9, 16, 30), short=(160, 160, 160)))
    # Images are enlarged to 672, so a crop of 256 shows a seventh of the objects.
    small = replace(FEW, objects=(26, 100, 80), sides=(0.01, 0.015, 0.02, 0.025, 0.03))
    assert not decided(rules.objects, replace(small, short=(900, 900, 900)))


def test_images_without_an_upper_side_are_turned():
    found = decided(rules.directions, replace(FEW, has_top=False))
    assert found == {"INPUT.RANDOM_FLIP": "both", "INPUT.RANDOM_ROTATE_90": True}


def test_the_small_network_reads_stride_4():
    found = decided(rules.levels, SEMANTIC)
    key = "MODEL.SEM_SEG_HEAD.IN_FEATURES"
    assert found == {key: ["blocks.1", "blocks.2", "blocks.4", "blocks.5"]}
    assert not decided(rules.levels, FEW) and not decided(rules.levels, SEMANTIC, GPU)


def test_contradictions():
    panoptic = load_config(base_config(FEW, CPU)[0])
    assert not [*contradictions(panoptic, FEW)]
    cells = replace(FEW, sides=(0.01, 0.03, 0.05, 0.06, 0.1), objects=(26, 147, 375))
    anchor, regions = contradictions(panoptic, cells)
    assert "at most 7.7 (median: 12.8), but the smallest anchor has 16" in anchor
    assert "half of the images have 26 objects" in regions and "only 16 to the mask" in regions
    panoptic.MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE = 256  # the most that a plan sets
    assert [*contradictions(panoptic, replace(cells, objects=(90, 147, 375)))] == [anchor]
    semantic = load_config(base_config(SEMANTIC, CPU)[0])
    assert not [*contradictions(semantic, SEMANTIC)]
    semantic.INPUT.MIN_SIZE_TRAIN = (2000,)
    (crop,) = contradictions(semantic, SEMANTIC)
    assert "than a crop of 224 pixels: leaf, tree." in crop
