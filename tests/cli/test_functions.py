"""``ocr_panoptic.train`` and similar functions do the work of the commands."""

import importlib
import json
import math

import numpy as np
import pytest
import torch
from detectron2.config import CfgNode

import ocr_panoptic
from ocr_panoptic.cli import call
from ocr_panoptic.config.files import load_config, quoted
from ocr_panoptic.predict.result import Result
from support.interrupted_runs import assert_same
from support.tiny_runs import OCR_CONFIG

pytestmark = pytest.mark.slow


@pytest.fixture
def tiny(tiny_data, make_args):
    """Return the config and the keys of a tiny run, without its OUTPUT_DIR."""
    args = make_args("SEED", 3)
    values = map(CfgNode._decode_cfg_value, args.opts[1::2])
    keys = dict(zip(args.opts[::2], values, strict=True))
    del keys["OUTPUT_DIR"]
    return args.config_file, keys


def test_training_and_evaluation_equal_the_commands(tiny, tmp_path, capsys):
    config, keys = tiny
    report = ocr_panoptic.check(config=config, OUTPUT_DIR=str(tmp_path), **keys)
    assert not report.faults and "3 iterations of 2 images" in str(report)
    found = ocr_panoptic.train(config, output=tmp_path / "a", deterministic=True, **keys)
    shown = capsys.readouterr().out
    assert "Training starts at iteration 0 of 3" in shown and "Panoptic quality" in shown
    assert found["panoptic_seg"].keys() >= {"PQ", "SQ"}
    opts = [part for key, value in keys.items() for part in (key, str(value))]
    flags = ["--config-file", config, "--deterministic"]
    call("train", [*flags, *opts, "OUTPUT_DIR", str(tmp_path / "c")])
    trained = [torch.load(tmp_path / run / "model_final.pth")["model"] for run in "ac"]
    assert_same(*trained)

    measured = ocr_panoptic.evaluate(tmp_path / "a", output=tmp_path / "evaluated")
    files = [
        json.loads((tmp_path / run / "inference/tiny_val/metrics.json").read_text())
        for run in ("a", "c", "evaluated")
    ]
    assert files[0]["panoptic_seg"] == files[1]["panoptic_seg"] == files[2]["panoptic_seg"]
    assert measured["panoptic_seg"]["PQ"] == files[2]["panoptic_seg"]["PQ"]
    assert not (tmp_path / "evaluated/model_final.pth").exists()
    longer = {**keys, "SOLVER.MAX_ITER": 4, "DATASETS.TEST": ()}
    ocr_panoptic.train(config, output=tmp_path / "a", resume=True, **longer)
    state = torch.load(tmp_path / "a/model_final.pth", weights_only=True)["trainer"]
    assert state["iteration"] == 3 and state["images"] == 8


@pytest.mark.parametrize("value", ["", None, 5, ["a"], b"a", torch.zeros(2)], ids=str)
def test_a_wrong_path_is_named_with_its_argument(value, tmp_path):
    calls = [
        (ocr_panoptic.load, "run"),
        (lambda value: ocr_panoptic.export(tmp_path, output=value), "output"),
        (lambda value: Result.save(None, value), "folder"),
    ]
    if value is not None:  # the default
        calls += [
            (ocr_panoptic.train, "config"),
            (lambda value: ocr_panoptic.load(tmp_path, value), "weights"),
            (lambda value: ocr_panoptic.train(OCR_CONFIG, output=value), "output"),
        ]
    for function, name in calls:
        with pytest.raises(ValueError) as error:
            function(value)
        assert str(error.value) == f"{name} is {value!r:.100}; expected a path."


@pytest.mark.parametrize(
    "function, arguments, message",
    [
        ("load", {"data": 5}, "data contains 5; expected a path, or a list of paths."),
        ("check", {"data": [None]}, "data contains None; expected a path, or a list of paths."),
        ("train", {"num_gpus": "2"}, "num_gpus is '2'; expected an integer of at least 1."),
        ("evaluate", {"num_gpus": 0}, "num_gpus is 0; expected an integer of at least 1."),
        ("check", {"resume": "yes"}, "resume is 'yes'; expected True, False or \"auto\"."),
        ("load", {"MODEL.OCR": 5}, "MODEL.OCR is a section. Name one of its keys: CHANNELS, "),
        ("load", {"MODEL.DEVICES": "cpu"}, "Unknown config key MODEL.DEVICES. Did you mean "),
        ("train", {"SOLVER.EPOCHS": math.inf}, "SOLVER.EPOCHS is inf; expected a finite number"),
        ("export", {"output": f"{__file__}/a.onnx"}, f"The folder {__file__} "),
        ("train", {"OUTPUT_DIR": __file__}, f"OUTPUT_DIR {__file__} is a file. Set"),
    ],
)
def test_messages_use_the_words_of_python(function, arguments, message):
    run = () if function == "check" else (OCR_CONFIG,)
    named = {"config": OCR_CONFIG} if function == "check" else {}
    with pytest.raises(ValueError) as error:
        getattr(ocr_panoptic, function)(*run, **named, **arguments)
    assert str(error.value).startswith(message) and "--" not in str(error.value)


def test_numbers_and_arrays_of_other_packages_are_values_of_keys():
    words = quoted(
        {"SOLVER.MAX_ITER": np.int64(7), "SOLVER.BASE_LR": np.float64(0.5)}
        | {"MODEL.PIXEL_MEAN": np.zeros(3), "MODEL.PIXEL_STD": torch.ones(3)}
    )
    cfg = load_config(str(OCR_CONFIG), words)
    assert (cfg.SOLVER.MAX_ITER, cfg.SOLVER.BASE_LR) == (7, 0.5)
    assert (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD) == ([0.0] * 3, [1.0] * 3)


def test_unexpected_results(trained, tmp_path):
    trained()
    expected = [["panoptic_seg", "PQ", 99.0, 0.1]]
    with pytest.raises(SystemExit):
        ocr_panoptic.evaluate(tmp_path / "run", **{"TEST.EXPECTED_RESULTS": expected})


def test_export_is_a_function_whatever_was_imported(tmp_path):
    """Imports do not replace the function."""
    pytest.importorskip("onnxruntime")
    importlib.import_module("ocr_panoptic.workbench.exporting")
    for _ in range(2):
        with pytest.raises(ValueError, match="The output is model.pth; expected .* ends in .onnx"):
            ocr_panoptic.export(tmp_path, output="model.pth")
    with pytest.raises(FileNotFoundError, match="has no complete checkpoint"):
        ocr_panoptic.export(tmp_path, output=tmp_path / "model.onnx")
