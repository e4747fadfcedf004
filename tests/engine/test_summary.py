"""The first lines of a training, at most 25."""

import pytest
import torch

from ocr_panoptic.engine import Trainer, setup
from ocr_panoptic.engine.run_claim import release
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG, TINY_SEMANTIC


@pytest.mark.parametrize(
    "config, opts, expected",
    [
        (
            OCR_CONFIG,
            (),
            ["tiny_train (8 images)", "4 thing and 5 stuff classes", "PanopticFPN", "with OCR"],
        ),
        (
            SEMANTIC_CONFIG,
            (*TINY_SEMANTIC, "MODEL.CONTEXT.NAME", "PPM", "SOLVER.ACCUMULATION_STEPS", 2),
            ["tiny_sem_train (8 images)", "9 classes", "with PPM", "of 2 images in 2 parts"],
        ),
    ],
    ids=["panoptic", "semantic"],
)
def test_the_start_of_a_run(tiny_data, make_args, tmp_path, capsys, config, opts, expected):
    """The table is the longest with weights of the backbone alone."""
    opts = (*opts, "SOLVER.MAX_ITER", 12, "SOLVER.CHECKPOINT_PERIOD", 5)
    trainer = Trainer(*setup(make_args(*opts, config=config)))
    weights = trainer.checkpointer.model.state_dict()
    backbone = {name: w for name, w in weights.items() if name.startswith("backbone.")}
    torch.save({"model": backbone}, tmp_path / "backbone.pth")
    trainer.cfg.defrost()
    trainer.cfg.MODEL.WEIGHTS = str(tmp_path / "backbone.pth")
    trainer.resume_or_load(False)
    release(tmp_path / "run")
    printed = "".join(capsys.readouterr())
    assert len(printed.splitlines()) <= 25
    parameters = sum(p.numel() for p in trainer.model.parameters()) / 1e6
    expected += ["Training starts at iteration 0 of 12", f"{parameters:.1f} M parameters"]
    expected += ["12 iterations of 2 images", "3.0 epochs", "backbone.pth fills ", "sem_seg_head"]
    assert "no step" not in printed
    expected += ["every 5 iterations and at the end", "cpu (", str(tmp_path / "run")]
    assert [text for text in expected if text not in printed] == []
    log = (tmp_path / "run/log.txt").read_text()
    assert "Environment:" in log and "SOLVER:\n" in log and "Training starts at" in log
