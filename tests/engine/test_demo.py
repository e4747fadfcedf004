"""demo.py on a tiny model with random weights."""

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from detectron2.data import Metadata, MetadataCatalog
from detectron2.data.detection_utils import read_image
from detectron2.modeling import build_model
from PIL import Image

import demo
from ocr_panoptic import engine
from ocr_panoptic.engine import complete_config, load_config
from ocr_panoptic.formats.video import VideoReader, Window, video_output
from ocr_panoptic.workbench.predicting.drawing import draw_video
from support.forked import run_forked
from support.tiny_runs import OCR_CONFIG, ROOT, SEMANTIC_CONFIG, make_labels_vary


@pytest.fixture
def opts(tiny_data, make_args, tmp_path) -> list[str]:
    """--config-file and --opts of a tiny model, its weights saved."""
    args = make_args()
    cfg = load_config(args.config_file, args.opts)
    complete_config(cfg)
    torch.manual_seed(0)
    weights = str(tmp_path / "weights.pth")
    torch.save({"model": build_model(cfg).state_dict()}, weights)
    return ["--config-file", str(OCR_CONFIG), "--opts", *args.opts, "MODEL.WEIGHTS", weights]


def call(opts: list[str], *arguments: object) -> list[str]:
    return [*map(str, arguments), *opts]


@pytest.fixture
def images(tiny_root) -> list[Path]:
    return sorted((tiny_root / "tiny/raw/val/images").glob("*.jpg"))[:2]


@pytest.mark.slow
def test_images_and_one_that_cannot_be_read(opts, images, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(images[0].read_bytes()[:400])
    out = tmp_path / "out"
    inputs = [images[0], broken, images[1]]
    words = [sys.executable, ROOT / "demo.py", *call(opts, "--input", *inputs, "--output", out)]
    status, log = run_forked(words, tmp_path / "log.txt"), (tmp_path / "log.txt").read_text()
    assert status == 1, log
    assert f"{broken}: image is broken or truncated" in log
    assert "1 of 3 inputs could not be read" in log
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in images)
    for path in images:
        before = np.asarray(Image.open(path)).astype(int)
        after = np.asarray(Image.open(out / path.name)).astype(int)
        assert after.shape == before.shape
        # opaque overlays, not a recompressed image
        assert np.abs(after - before).mean() > 10


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["OCR", "PPM"])
def test_labels_of_a_semantic_model(tiny_data, semantic_args, images, tmp_path, scheme):
    """Each label's pixels have its colour over the image."""
    args = semantic_args("MODEL.CONTEXT.NAME", scheme)
    cfg = load_config(args.config_file, args.opts)
    complete_config(cfg)
    torch.manual_seed(0)
    model = build_model(cfg).eval()
    # Eight times as large, so that names and outlines that are drawn cover little of a label.
    image = cv2.resize(cv2.imread(str(images[0])), (512, 512))
    source = tmp_path / "large.png"
    cv2.imwrite(str(source), image)
    pixels = read_image(source, cfg.INPUT.FORMAT).transpose(2, 0, 1)
    record = {"image": torch.as_tensor(pixels.copy())}
    make_labels_vary(model, record)
    weights, out = tmp_path / "weights.pth", tmp_path / "one.png"
    torch.save({"model": model.state_dict()}, weights)
    opts = ["--config-file", str(SEMANTIC_CONFIG), "--opts", *args.opts]
    opts += ["MODEL.WEIGHTS", str(weights)]
    assert demo.main(call(opts, "--input", source, "--output", out)) == 0

    labels = model([record])[0]["labels"]
    colors = np.asarray(MetadataCatalog.get("tiny_sem_val").stuff_colors)[labels.numpy()]
    drawn, before = np.asarray(Image.open(out).convert("RGB")).astype(float), image[:, :, ::-1]
    change, towards = drawn - before, colors - before.astype(float)
    # Opaque to the same share in all channels: drawn = before + share * (colour - before).
    share = np.median((change * towards).sum(axis=2) / (towards * towards).sum(axis=2))
    assert 0.5 < share < 1
    assert len(labels.unique()) > 1
    right = (np.abs(change - share * towards) < 6).all(axis=2)
    assert right.mean() > 0.8  # the rest are outlines and names


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".avi", ".mp4"])
def test_a_video(opts, images, tmp_path, suffix):
    source = tmp_path / f"source{suffix}"
    codec = cv2.VideoWriter_fourcc(*{".avi": "MJPG", ".mp4": "mp4v"}[suffix])
    writer = cv2.VideoWriter(str(source), codec, 10, (64, 64))
    if not writer.isOpened():
        pytest.skip(f"this OpenCV writes no {suffix}")
    for path in [*images, images[0]]:
        writer.write(cv2.imread(str(path)))
    writer.release()
    drawn = tmp_path / f"drawn{suffix}"
    assert demo.main(call(opts, "--video-input", source, "--output", drawn)) == 0
    reader = VideoReader(drawn)
    assert reader.fps == pytest.approx(10)
    frames = list(reader)
    assert [frame.shape for frame in frames] == [(64, 64, 3)] * 3
    for before, after in zip(VideoReader(source), frames):
        assert np.abs(before.astype(int) - after).mean() > 10


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["MJPG", "mp4v"])
def test_a_video_cut_in_half(tmp_path, codec):
    """The frames that are left are drawn, and the program does not end as if they were all."""
    source, drawn = tmp_path / "source.avi", tmp_path / "drawn.avi"
    writer = cv2.VideoWriter(str(source), cv2.VideoWriter_fourcc(*codec), 10, (64, 64))
    noise = np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), np.uint8)
    for frame in noise:
        writer.write(frame)
    writer.release()
    assert len(list(VideoReader(source))) == 40
    source.write_bytes(source.read_bytes()[: source.stat().st_size // 2])

    def predict(image):
        return {"labels": torch.zeros(image.shape[:2], dtype=torch.long)}

    metadata = Metadata(stuff_classes=["a"], stuff_colors=[[255, 0, 0]])
    with pytest.raises(ValueError, match=r"source\.avi: ends after \d+ of its 40 frames"):
        draw_video(VideoReader(source), drawn, predict, metadata)
    assert 5 < len(list(VideoReader(drawn))) < 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drawn.avi", "source.avi"]


THRESHOLD = "--webcam --confidence-threshold"


@pytest.mark.parametrize(
    "arguments, fault",
    [
        *((f"{THRESHOLD} {n}", "--confidence-threshold") for n in ("7", "-0.1", "nan", "half")),
        ("", "--input"),  # no source
        ("--input a.jpg --webcam", "--webcam"),  # two sources
        ("--webcam --output out", "--output"),  # a camera to a file
    ],
)
def test_arguments_that_make_no_sense(arguments, fault, capsys):
    with pytest.raises(SystemExit) as end:
        demo.main(["--config-file", "c.yaml", *arguments.split()])
    assert end.value.code == 2 and fault in capsys.readouterr().err.splitlines()[-1]


def test_the_threshold_reaches_the_model(opts, images, tmp_path, monkeypatch):
    class Seen(Exception):
        pass

    def build(cfg):
        raise Seen(cfg.MODEL)

    monkeypatch.setattr(engine, "build_trained_model", build)
    arguments = ["--confidence-threshold", 0.75, "--input", images[0], "--output", tmp_path / "o"]
    with pytest.raises(Seen) as seen:
        demo.main(call(opts, *arguments))
    (model,) = seen.value.args
    assert model.RETINANET.SCORE_THRESH_TEST == model.ROI_HEADS.SCORE_THRESH_TEST == 0.75
    assert model.PANOPTIC_FPN.COMBINE.INSTANCES_CONFIDENCE_THRESH == 0.75


def test_missing_weights(opts, images, tmp_path):
    arguments = call(opts, "--input", images[0], "--output", tmp_path / "out")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth"):
        demo.main([*arguments, "MODEL.WEIGHTS", "nowhere.pth"])
    with pytest.raises(ValueError, match=r"MODEL\.WEIGHTS"):
        demo.main([*arguments, "MODEL.WEIGHTS", ""])


@pytest.mark.parametrize(
    "flag, file, error, fault",
    [
        ("--input", "nothing/*.jpg", FileNotFoundError, r"--input nothing/\*\.jpg"),
        ("--video-input", "nothing.mp4", FileNotFoundError, r"--video-input nothing\.mp4"),
        ("--video-input", "text.mp4", ValueError, r"cannot open .*text\.mp4"),
    ],
)
def test_inputs_are_checked_first(tmp_path, monkeypatch, flag, file, error, fault):
    """Before the config is read, let alone the model built."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(error, match=fault):
        demo.main(["--config-file", "missing.yaml", flag, file])


def test_where_a_video_goes(tmp_path):
    source = tmp_path / "a.avi"
    source.touch()
    assert video_output(source, str(tmp_path)) == tmp_path / "a.mp4"
    assert video_output(source, str(tmp_path / "new")) == tmp_path / "new/a.mp4"
    assert video_output(source, str(tmp_path / "x/b.mp4")) == tmp_path / "x/b.mp4"
    assert (tmp_path / "x").is_dir()
    with pytest.raises(ValueError, match=r"ends in \.mp4 or \.avi"):
        video_output(source, "b.mkv")
    with pytest.raises(ValueError, match="overwrite the input"):
        video_output(source, str(source))


def test_a_window_needs_a_display(monkeypatch):
    def fail(*args):
        raise cv2.error("The function is not implemented")

    monkeypatch.setattr(cv2, "namedWindow", fail)
    with pytest.raises(OSError, match="--output"):
        Window("title", wait_ms=1)
