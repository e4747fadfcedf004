"""The first lines of a training."""

import pytest
import torch

from ocr_panoptic.engine import Trainer, setup
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
            (*TINY_SEMANTIC, "MODEL.CONTEXT.NAME", "PPM"),
            ["tiny_sem_train (8 images)", "9 classes", "with PPM"],
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
    printed = "".join(capsys.readouterr())
    parameters = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad) / 1e6
    expected += ["Training starts at iteration 0 of 12", f"{parameters:.1f} M trained parameters"]
    expected += ["12 iterations of 2 images", "3.0 epochs", "backbone.pth fills ", "sem_seg_head"]
    expected += ["cpu (", str(tmp_path / "run")]
    assert [text for text in expected if text not in printed] == []
    log = (tmp_path / "run/log.txt").read_text()
    assert "PyTorch" in log and "SOLVER:\n" in log and "Training starts at" in log
    assert "SOLVER:\n" not in printed
