"""How large an image is seen at once, by the memory."""

import pytest

from ocr_panoptic.engine import load_config, memory
from ocr_panoptic.engine.memory import LARGEST, bytes_of_pixel, free_memory, largest_image
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG


def config(*opts: object, base=SEMANTIC_CONFIG):
    own_size = "INPUT.MIN_SIZE_TEST", "0", "MODEL.DEVICE", "cpu"
    return load_config(str(base), [*own_size, *map(str, opts)])


def test_bytes_of_a_pixel():
    """64 of maps, 2 x 100 of drawing, 5 x 19 of images and results, and what the model adds."""
    windows = "TEST.SLIDING_WINDOW.SIZE", "[512, 512]", "TEST.SLIDING_WINDOW.STRIDE", "[384, 384]"
    classes = "MODEL.SEM_SEG_HEAD.NUM_CLASSES"
    assert bytes_of_pixel(config()) == 359 + 1000
    # A running sum of float32 in place of a network that sees it all; two with several scales.
    assert bytes_of_pixel(config(classes, 150, *windows)) == 359 + 600
    assert bytes_of_pixel(config(classes, 19, *windows, "TEST.SCALES", "[1., 2.]")) == 359 + 152
    assert bytes_of_pixel(config(classes, 19, "TEST.SCALES", "[1., 2.]")) == 359 + 4000 + 76
    augmented = "TEST.AUG.ENABLED", True, classes, 19
    assert (
        bytes_of_pixel(config(*augmented, base=OCR_CONFIG))
        == bytes_of_pixel(config(classes, 19, base=OCR_CONFIG)) + 76
    )
    # Logits are blended at full size: those of twice the size, and four of the image's own.
    blended = classes, 19, "TEST.SCALES", "[1., 2.]", "MODEL.HMSA.ENABLED", True
    assert bytes_of_pixel(config(*blended)) == 359 + 4000 + 76 + 4 * 76 + 4 * 76
    assert bytes_of_pixel(config(*blended, *windows)) == 359 + 152
    # The network sees it scaled down.
    assert bytes_of_pixel(config("INPUT.MIN_SIZE_TEST", 512)) == 359
    # Five images' masks of 100 instances, and those that are being made.
    masks = "TEST.DETECTIONS_PER_IMAGE", 100, "INPUT.MIN_SIZE_TEST", 800
    assert bytes_of_pixel(config(*masks, base=OCR_CONFIG)) == 359 + 500 + 100


def test_the_limit_follows_from_the_memory(monkeypatch):
    cfg = config("MODEL.SEM_SEG_HEAD.NUM_CLASSES", 19)
    monkeypatch.setattr(memory, "free_memory", lambda: 4 * 2**30)
    limit = largest_image(cfg)
    assert limit.pixels == 0.75 * 4 * 2**30 // 1359
    assert limit.reason == (
        "75% of the free memory, 4.0 GiB, are for 2.4 megapixels, of 1,359 bytes each with 19 "
        "classes"
    )
    monkeypatch.setattr(memory, "free_memory", lambda: 2**40)
    assert largest_image(cfg).pixels == LARGEST
    cfg.MODEL.DEVICE = "cuda:1"
    free = {"cuda:1": (2**30, 2**40)}
    monkeypatch.setattr("torch.cuda.mem_get_info", free.get)
    assert largest_image(cfg).pixels == 0.75 * 2**30 // 1359


@pytest.mark.parametrize("limit, free", [("max\n", 1000 * 1024), ("500000\n", 400_000)])
def test_a_container_has_less(tmp_path, monkeypatch, limit, free):
    (tmp_path / "meminfo").write_text("MemFree: 5 kB\nMemAvailable:    1000 kB\n")
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("400000\n")  # 300000 of them files that were read
    (tmp_path / "memory.stat").write_text("anon 100000\nactive_file 100000\ninactive_file 200000\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert free_memory() == free
