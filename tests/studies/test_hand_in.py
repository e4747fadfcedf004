"""Runs of the paper's rows are handed in as records, which the page's table shows."""

import json

import pytest

from ocr_panoptic.errors import UserError
from studies import hand_in
from support.tiny_runs import ROOT, SEGMENTS

CONFIG = "quick_schedules/panoptic_fpn_ocr_R_18_scenes"
PANOPTIC = "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x"


def test_the_page_shows_all_records():
    records = hand_in.read_records()
    assert hand_in.records_table(records) in (ROOT / "docs/paper_tables.md").read_text()
    assert all({"metrics", "changed", "data", "run"} <= record.keys() for record in records)


@pytest.mark.slow
def test_a_record_of_a_run(trained, tmp_path, monkeypatch, capsys):
    trained(*SEGMENTS)
    run, folder = tmp_path / "run", tmp_path / "paper"
    monkeypatch.setattr(hand_in, "FOLDER", folder)
    hand_in.main([str(run), CONFIG, "MODEL.RESNETS.DEPTH", "18", "SOLVER.MAX_ITER", "3"])
    (record,) = hand_in.read_records()
    evaluation = json.loads((run / "inference/tiny_val/metrics.json").read_text())
    assert record["config"] == CONFIG and record["run"]["seed"] == evaluation["run"]["seed"]
    assert record["metrics"]["panoptic_seg/PQ"] == evaluation["panoptic_seg"]["PQ"]
    assert record["changed"]["SOLVER.STEPS"][1] == [2]
    assert not {"SOLVER.MAX_ITER", "MODEL.RESNETS.DEPTH", "OUTPUT_DIR"} & record["changed"].keys()
    assert {name: data["images"] for name, data in record["data"].items()} == {
        "tiny_train": 8,
        "tiny_val": 4,
    }
    assert str(tmp_path) not in json.dumps(record)
    assert f"`{CONFIG}` `MODEL.RESNETS.DEPTH 18 SOLVER.MAX_ITER 3`" in capsys.readouterr().out
    with pytest.raises(UserError, match="the log ends at iteration 3 .* SOLVER.MAX_ITER is 4"):
        config = (run / "config.yaml").read_text().replace("MAX_ITER: 3", "MAX_ITER: 4")
        (run / "config.yaml").write_text(config)
        hand_in.make_record(run, CONFIG, [])


def test_the_digest_of_data(tmp_path, monkeypatch):
    """It is equal in another folder and order, and differs if a file or a segment does."""

    def digest(root: str, segments: list[dict], order: int = 1, size: int = 7) -> str:
        monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / root))
        (tmp_path / root / "photos").mkdir(parents=True, exist_ok=True)
        records = []
        for name in "ab":
            file = tmp_path / root / f"photos/{name}.jpg"
            file.write_bytes(b"x" * size)
            records.append({"file_name": str(file), "height": 4, "segments_info": segments})
        found = hand_in.data_digest(records[::order])
        assert found["images"] == 2
        return found["sha256"]

    original = digest("here", [{"id": 1}])
    assert digest("there", [{"id": 1}], order=-1) == original
    assert len({original, digest("here", [{"id": 2}]), digest("here", [{"id": 1}], size=8)}) == 3


def test_the_table_beside_the_papers_numbers():
    """The paper's numbers are those of the row's config and keys."""
    record = {
        "config": PANOPTIC,
        "keys": {},
        "changed": {"SOLVER.AMP.ENABLED": [False, True]},
        "metrics": {"panoptic_seg/PQ": 42.513, "panoptic_seg/PQ_th": 48.0, "panoptic_seg/PQ_st": 33}
        | {"sem_seg/mIoU": 44.0, "bbox/AP": 40.0},
        "run": {"seed": 7, "processes": 8, "device": "GPU"},
    }
    table = hand_in.records_table([record])
    assert "PQ 42.51 (42.7)" in table and "AP 40.00 (40.4)" in table and "8 x GPU" in table
    assert "`SOLVER.AMP.ENABLED True`" in table
    supervised = {"MODEL.OCR.REGION_SUPERVISION": "False"}
    config = "Cityscapes-SemanticSegmentation/ocr_R_101_d8_40k_bs8"
    record.update(config=config, keys=supervised)
    assert "mIoU 44.00 (77.31)" in hand_in.records_table([record])
    record["keys"] = {"SOLVER.BASE_LR": "0.02"}  # not a row
    assert "PQ 42.51, mIoU 44.00 |" in hand_in.records_table([record])
