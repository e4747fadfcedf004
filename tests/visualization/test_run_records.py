"""Reading what a run wrote."""

import json

import pytest

from ocr_panoptic.visualization import read_evaluation, read_training_log


def test_evaluation(tmp_path):
    metrics = {"run": {"seed": 3}, "panoptic_seg": {"PQ": 70.5, "SQ": None}}
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    (tmp_path / "per_class.csv").write_text('class,isthing,PQ\n"a, b",1,70.5\nsky,0,\n')
    evaluation = read_evaluation(tmp_path)
    assert evaluation.run == {"seed": 3}
    assert evaluation.tasks == {"panoptic_seg": {"PQ": 70.5, "SQ": None}}
    assert evaluation.per_class == [
        {"class": "a, b", "isthing": "1", "PQ": "70.5"},
        {"class": "sky", "isthing": "0", "PQ": ""},
    ]


@pytest.mark.parametrize("name", ["metrics.json", "per_class.csv"])
def test_a_missing_file_names_the_command_that_makes_it(tmp_path, name):
    folder = tmp_path / "run/inference/scenes_val"
    folder.mkdir(parents=True)
    for other in {"metrics.json", "per_class.csv"} - {name}:
        (folder / other).write_text("{}")
    with pytest.raises(FileNotFoundError) as error:
        read_evaluation(folder)
    assert str(folder / name) in str(error.value)
    assert "train_net.py --config-file CONFIG --eval-only" in str(error.value)
    assert str(tmp_path / "run") in str(error.value)


def write_log(path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_resumed_run_replaces_what_it_repeats(tmp_path):
    file = tmp_path / "metrics.json"
    values = [(19, 5.0), (39, 4.0), (59, 3.0), (39, 2.0), (59, 1.0)]
    write_log(file, [{"iteration": i, "total_loss": v} for i, v in values])
    assert [(r["iteration"], r["total_loss"]) for r in read_training_log(file)] == [
        (19, 5.0),
        (39, 2.0),
        (59, 1.0),
    ]


def test_lines_of_one_iteration_are_one_record(tmp_path):
    file = tmp_path / "metrics.json"
    write_log(file, [{"iteration": 9, "total_loss": 1.0}, {"iteration": 9, "panoptic_seg/PQ": 50}])
    assert read_training_log(file) == [{"iteration": 9, "total_loss": 1.0, "panoptic_seg/PQ": 50}]


def test_evaluations_between_two_lines_of_training(tmp_path):
    """As Detectron2 writes them, every 20 iterations at once."""
    file = tmp_path / "metrics.json"
    rows = [{"iteration": 19, "total_loss": 3.0}, {"iteration": 9, "sem_seg/mIoU": 10.0}]
    rows += [{"iteration": 39, "total_loss": 2.0}, {"iteration": 29, "sem_seg/mIoU": 20.0}]
    write_log(file, rows)
    assert read_training_log(file) == [rows[1], rows[0], rows[3], rows[2]]


def test_no_log_is_an_empty_log(tmp_path):
    assert read_training_log(tmp_path / "metrics.json") == []


@pytest.mark.parametrize("line", ['{"iteration": 1, "total', "[]", '{"total_loss": 1}'])
def test_a_damaged_line_is_named(tmp_path, line):
    file = tmp_path / "metrics.json"
    file.write_text('{"iteration": 0}\n' + line + "\n")
    with pytest.raises(ValueError, match="metrics.json, line 2"):
        read_training_log(file)
