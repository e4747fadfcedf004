"""What a config file and a command line can say, and how the rest is refused."""

import pytest

from ocr_panoptic.engine import load_config
from support.tiny_runs import OCR_CONFIG


@pytest.mark.parametrize(
    "words, fault",
    [
        (["MODEL.OCR.CHANELS", "64"], r"MODEL.OCR.CHANELS.*Did you mean MODEL.OCR.CHANNELS\?"),
        (["MODEL.OCR.CHANNELS", "many"], "Bad config value in the command line"),
        (["MODEL.OCR.CHANNELS", "(1, 2)"], "Bad config value in the command line"),
        (["SOLVER.BASE_LR", "fast"], "SOLVER.BASE_LR is a float, such as 0"),
        (["SOLVER.MAX_ITER", "many"], "SOLVER.MAX_ITER is an int, such as"),
        (["SOLVER.MAX_ITER", "1.0"], "Type mismatch .*SOLVER.MAX_ITER"),
        (["SOLVER.GAMMA", "True"], "Type mismatch .*SOLVER.GAMMA"),
        (["SOLVER.BASE_LR.X", "1"], r"SOLVER.BASE_LR.X: SOLVER.BASE_LR is a value \(0"),
        (["SOLVER", "1"], "SOLVER is a section; set one of its keys, such as SOL"),
        (["SOLVER.BASE_LR"], "KEY VALUE pairs"),
        (["SOLVER.STEPS", "(" * 100000], "SOLVER.STEPS"),
        (["OUTPUT_DIR", "\x1b[31m"], r"OUTPUT_DIR is '\\x1b"),
        (["SOLVER.BASE_LR", "1", "--resume"], "--resume: flags stand before the first KEY"),
        (
            ["DATASETS.TRAIN", "city_train"],
            "in the command line.*city_train(.|\n)*DATASETS.TRAIN is a tuple, such as .*quotes on "
            r"the command line: \"\('one_name',\)",
        ),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_a_command_line_cannot_say(words, fault):
    with pytest.raises(ValueError, match=fault):
        load_config(str(OCR_CONFIG), words)


def test_a_config_is_a_file_of_this_machine():
    with pytest.raises(FileNotFoundError, match=r"nowhere.yaml"):
        load_config("nowhere.yaml", [])
    with pytest.raises(ValueError, match="--config-file http://127.0.0.1/c.yaml is an address"):
        load_config("http://127.0.0.1/c.yaml", [])


def test_an_integer_serves_as_a_number(tmp_path):
    """1 serves as 1.0 in a file, in one that it includes, and on the command line."""
    (tmp_path / "base.yaml").write_text("SOLVER: {BASE_LR: 3}\n")
    (tmp_path / "c.yaml").write_text("_BASE_: base.yaml\nSOLVER: {MOMENTUM: 1}\nVERSION: 2\n")
    cfg = load_config(str(tmp_path / "c.yaml"), ["SOLVER.GAMMA", "-1", "SOLVER.WEIGHT_DECAY", 2])
    solver = cfg.SOLVER
    found = [solver.BASE_LR, solver.MOMENTUM, solver.GAMMA, solver.WEIGHT_DECAY]
    assert found == [3, 1, -1, 2] and all(isinstance(value, float) for value in found)


@pytest.mark.parametrize(
    "content, found", [("", "is empty"), ("- a\n- b\n", "holds a list"), ("text", "holds a str")]
)
def test_file_without_keys(tmp_path, content, found):
    (tmp_path / "base.yaml").write_text(content)
    (tmp_path / "c.yaml").write_text("_BASE_: base.yaml\n")
    for name in ("base.yaml", "c.yaml"):
        with pytest.raises(ValueError, match=f"base.yaml {found}; it needs lines of the form KEY"):
            load_config(str(tmp_path / name), [])


def test_a_file_lies_over_those_that_it_includes(tmp_path):
    (tmp_path / "a.yaml").write_text("SOLVER: {BASE_LR: 1, GAMMA: 0.5, MOMENTUM: 0.5}\n")
    (tmp_path / "b.yaml").write_text("SOLVER: {GAMMA: 0.25}\nINPUT: {CROP: {SIZE: [8, 8]}}\n")
    (tmp_path / "c.yaml").write_text("_BASE_: [a.yaml, b.yaml]\nINPUT: {CROP: {ENABLED: true}}\n")
    cfg = load_config(str(tmp_path / "c.yaml"), ["SOLVER.MOMENTUM", "0.75"])
    assert (cfg.SOLVER.BASE_LR, cfg.SOLVER.GAMMA, cfg.SOLVER.MOMENTUM) == (1, 0.25, 0.75)
    assert (cfg.INPUT.CROP.SIZE, cfg.INPUT.CROP.ENABLED) == ([8, 8], True)


@pytest.mark.parametrize(
    "content, fault",
    [
        ("_BASE_: 5\n", r"_BASE_: 5; it is the path of a file, or a list of them"),
        ("_BASE_: [5]\n", r"_BASE_: \[5\]; it is the path"),
        ("_BASE_: c.yaml\n", "c.yaml names _BASE_: c.yaml, which includes .*c.yaml"),
        ("_BASE_: ../base.yaml\n", "c.yaml names _BASE_: ../base.yaml, but /.*base"),
        ("SOLVER: 5\n", "c.yaml: SOLVER is a section; set one of its keys, such as SOLVER"),
        ("SOLVER: \n", "c.yaml: SOLVER is a section"),
        ("SOLVER: [1]\n", "c.yaml: SOLVER is a section"),
        ("_BASE_: {a: 1}\n", r"_BASE_: {'a': 1}; it is the path"),
        ("SOLVER: {STEPS: }\n", "SOLVER.STEPS has no value; it is a tuple, such as"),
        ("SOLVER: {BASE_LR: }\n", "SOLVER.BASE_LR has no value; it is a float, such as 0.001"),
        ("_BASE_: null\n", r"_BASE_: None; it is the path"),
        ("_BASE_: http://127.0.0.1/a.yaml\n", "an address; download the file first"),
        ("5: 6\n", "the key 5; the keys of a config are words"),
        ("MODEL: {OCR: {CHANELS: 64}}\n", "MODEL.OCR.CHANELS in .*c.yaml. Did you mean MODEL.OCR"),
        ("SOLVER:\n  5: 6\n", "the key 5; the keys"),
        ("A: [" + "[" * 99 + "]" * 100 + "\n", "is not valid YAML: nested too deeply"),
        ('OUTPUT_DIR: "a\\0b"\n', r"OUTPUT_DIR is 'a\\x00b', with characters that cannot"),
        ('DATASETS: {TRAIN: ["\\e[31mX"]}\n', r"DATASETS.TRAIN is \['\\x1b\[31mX'\], with char"),
    ],
    ids=lambda text: text[:20].encode("unicode_escape").decode(),
)
def test_what_a_file_cannot_say(tmp_path, content, fault):
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=fault) as error:
        load_config(str(tmp_path / "c.yaml"), [])
    message = str(error.value)
    assert message.isprintable() and len(message) < 300


def test_yaml_runs_no_code(tmp_path):
    marker = tmp_path / "marker"
    (tmp_path / "c.yaml").write_text(f"OUTPUT_DIR: !!python/object/apply:os.mkdir ['{marker}']\n")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_config(str(tmp_path / "c.yaml"), [])
    assert not marker.exists()
