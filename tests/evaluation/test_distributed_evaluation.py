"""Two processes give the numbers of one."""

import json
import multiprocessing

import numpy as np
import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from detectron2.data import MetadataCatalog
from detectron2.evaluation import COCOPanopticEvaluator
from panopticapi.evaluation import pq_compute

from ocr_panoptic.engine.launch import leave_process_group
from ocr_panoptic.evaluation.panoptic_dump import PanopticDump
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from support import panoptic_samples as samples_of

pytestmark = pytest.mark.usefixtures("clean_catalog")

NAME = "distributed_panoptic"
CATEGORIES = samples_of.make_categories(3, 3)
WORLD_SIZE = 2


def evaluate(evaluators, inputs, outputs) -> dict:
    results = {}
    for evaluator in evaluators:
        evaluator.reset()
        evaluator.process(inputs, outputs)
        results.update(evaluator.evaluate() or {})
    return results


def worker(rank: int, folder, samples) -> None:
    """Evaluate this rank's half of the images, as Detectron2's InferenceSampler deals them."""
    dist.init_process_group("gloo", f"file://{folder}/init", world_size=WORLD_SIZE, rank=rank)
    samples_of.register(NAME, folder / f"rank{rank}", CATEGORIES, samples)
    inputs, outputs = samples_of.inputs_and_outputs(
        NAME, CATEGORIES, samples, np.random.default_rng(1)
    )
    half = len(inputs) // WORLD_SIZE
    mine = slice(rank * half, (rank + 1) * half)
    evaluators = [PanopticEvaluator(NAME), SemSegEvaluator(NAME)]
    evaluators.append(PanopticDump(NAME, folder / "out"))
    results = evaluate(evaluators, inputs[mine], outputs[mine])
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    else:
        assert results == {}
    leave_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path, forks, monkeypatch):
    samples = samples_of.random_samples(np.random.default_rng(0), 12, CATEGORIES)
    mp.start_processes(worker, (tmp_path, samples), nprocs=WORLD_SIZE)
    results = json.loads((tmp_path / "results.json").read_text())

    samples_of.register(NAME, tmp_path / "one", CATEGORIES, samples)
    metadata = MetadataCatalog.get(NAME)
    inputs, outputs = samples_of.inputs_and_outputs(
        NAME, CATEGORIES, samples, np.random.default_rng(1)
    )
    one = evaluate([PanopticEvaluator(NAME), SemSegEvaluator(NAME)], inputs, outputs)
    assert results["sem_seg"] == pytest.approx(one["sem_seg"], rel=1e-13)
    assert results["sem_seg"]["ECE"] > 0
    # Two partial sums of IoUs round otherwise than one sum does ...
    assert results["panoptic_seg"] == pytest.approx(one["panoptic_seg"], rel=1e-13)
    # ... but as panopticapi's do when it has two processes.
    monkeypatch.setattr(multiprocessing, "cpu_count", lambda: WORLD_SIZE)
    theirs = evaluate([COCOPanopticEvaluator(NAME)], inputs, outputs)["panoptic_seg"]
    assert {metric: results["panoptic_seg"][metric] for metric in theirs} == theirs
    # The parts that the processes saved are one whole.
    saved = pq_compute(
        metadata.panoptic_json,
        str(tmp_path / "out" / "panoptic_predictions.json"),
        gt_folder=metadata.panoptic_root,
    )
    assert 100 * saved["All"]["pq"] == results["panoptic_seg"]["PQ"]
