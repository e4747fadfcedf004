"""What a config file and a command line can say, and how the rest is refused."""

import pytest

from ocr_panoptic.engine import load_config


def test_a_file_lies_over_those_that_it_includes(tmp_path):
    (tmp_path / "a.yaml").write_text("SOLVER: {BASE_LR: 1, GAMMA: 0.5, MOMENTUM: 0.5}\n")
    (tmp_path / "b.yaml").write_text("SOLVER: {GAMMA: 0.25}\nINPUT: {CROP: {SIZE: [8, 8]}}\n")
    (tmp_path / "c.yaml").write_text("_BASE_: [a.yaml, b.yaml]\nINPUT: {CROP: {ENABLED: true}}\n")
    cfg = load_config(str(tmp_path / "c.yaml"), ["SOLVER.MOMENTUM", "2"])
    assert (cfg.SOLVER.BASE_LR, cfg.SOLVER.GAMMA, cfg.SOLVER.MOMENTUM) == (1.0, 0.25, 2.0)
    assert isinstance(cfg.SOLVER.BASE_LR, float) and isinstance(cfg.SOLVER.MOMENTUM, float)
    assert (cfg.INPUT.CROP.SIZE, cfg.INPUT.CROP.ENABLED) == ([8, 8], True)


@pytest.mark.parametrize(
    "content, fault",
    [
        ("", "needs lines of the form KEY"),
        ("- a\n", "needs lines of the form KEY"),
        ("_BASE_: c.yaml\n", "its _BASE_ cannot be read"),
        ("_BASE_: 5\n", "its _BASE_ cannot be read"),
        ("_BASE_: list.yaml\n", "list.yaml needs lines of the form KEY"),
        ("_BASE_: ../base.yaml\n", "/base.yaml does not exist"),
        ("_BASE_: http://127.0.0.1/a.yaml\n", "an address; download the file first"),
        ("SOLVER: 5\n", "Unknown config key SOLVER"),
        ("SOLVER: \n", "Unknown config key SOLVER"),
        ("SOLVER: {STEPS: }\n", "SOLVER.STEPS is None"),
        ("SOLVER: {BASE_LR: 0.1, BASE_LR: 0.2}\n", "'BASE_LR' is given twice"),
        ("SOLVER: {BASE_LR: 0.1}\nSOLVER: {GAMMA: 0.2}\n", "'SOLVER' is given twice"),
        ("5: 6\n", "Unknown config key 5"),
        ("MODEL: {OCR: {CHANELS: 64}}\n", "MODEL.OCR.CHANELS in .*c.yaml. Did you mean MODEL.OCR"),
        ("SEED: !!python/object/apply:os.mkdir ['marker']\n", "not valid YAML"),
    ],
    ids=lambda text: text[:20].encode("unicode_escape").decode(),
)
def test_what_a_file_cannot_say(tmp_path, monkeypatch, content, fault):
    """It runs no code, either."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.yaml").write_text("- a\n")
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=fault) as error:
        load_config(str(tmp_path / "c.yaml"), [])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "marker").exists()
