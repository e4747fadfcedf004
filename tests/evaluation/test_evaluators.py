"""The streaming evaluators, compared with Detectron2, panopticapi and pycocotools."""

import json
import math
import multiprocessing

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from detectron2.config import get_cfg
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.evaluation import COCOEvaluator, COCOPanopticEvaluator
from detectron2.evaluation import SemSegEvaluator as Detectron2SemSegEvaluator
from detectron2.structures import BitMasks, Instances
from panopticapi.evaluation import pq_compute
from PIL import Image

from ocr_panoptic.evaluation.confusion import confusion_matrix, semantic_scores
from ocr_panoptic.evaluation.instance_evaluator import PanopticInstanceEvaluator
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.predictions import PanopticDump, labels_of_output
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from ocr_panoptic.predict.evaluators import build_evaluator
from support import panoptic_samples as samples_of

pytestmark = pytest.mark.usefixtures("clean_catalog")

NAME = "random_panoptic"
CATEGORIES = samples_of.make_categories(4, 6)
SIZE = (150, 160)  # has room for COCO's small, medium and large instances
TASKS = ("bbox", "segm")


def load_labels(path, dtype):
    """Replace Detectron2's own loader, which fails with NumPy 2."""
    return np.array(Image.open(path), dtype=dtype)


def instances_of(rng: np.random.Generator, sample: samples_of.Sample) -> Instances:
    """Return the predicted segments, some twice, but never the last class of things."""
    masks, classes = [], []
    for segment in sample.predicted_segments:
        for _ in range(rng.integers(1, 3)):
            masks.append(np.roll(sample.predicted_ids == segment["id"], rng.integers(3)))
            wrong = rng.random() < 0.5
            classes.append(int(rng.integers(3)) if wrong else segment["category_id"] % 3)
    found = Instances(sample.ids.shape)
    found.pred_masks = torch.tensor(np.array(masks).reshape(-1, *sample.ids.shape))
    found.pred_boxes = BitMasks(found.pred_masks).get_bounding_boxes()
    found.pred_classes = torch.tensor(classes, dtype=torch.int64)
    found.scores = torch.tensor(rng.random(len(classes)).round(1))  # many are equal
    return found


def make_data(folder, ids: type = int, number: int = 12) -> tuple[list, list]:
    rng = np.random.default_rng(0)
    samples = samples_of.random_samples(rng, number, CATEGORIES, SIZE)
    for sample in samples if ids is str else ():
        sample.image_id = f"{sample.image_id % 7}_{sample.image_id}"
    samples_of.register(NAME, folder, CATEGORIES, samples)
    inputs, outputs = samples_of.inputs_and_outputs(NAME, CATEGORIES, samples, rng)
    for output, sample in zip(outputs, samples, strict=True):
        output["sem_seg"][1] -= 9  # a class that is never predicted
        output["instances"] = instances_of(rng, sample)
    return inputs, outputs


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path)


def run(evaluator, inputs, outputs, batch=5):
    evaluator.reset()
    for start in range(0, len(inputs), batch):
        evaluator.process(inputs[start : start + batch], outputs[start : start + batch])
    return evaluator.evaluate()


# Each evaluator, and the official evaluator that it equals.
EVALUATORS = {
    "panoptic": (lambda: PanopticEvaluator(NAME), lambda: COCOPanopticEvaluator(NAME)),
    "semantic": (
        lambda: SemSegEvaluator(NAME),
        lambda: Detectron2SemSegEvaluator(NAME, sem_seg_loading_fn=load_labels),
    ),
    "instances": (
        lambda: PanopticInstanceEvaluator(NAME, TASKS),
        lambda: COCOEvaluator(NAME, tasks=TASKS, use_fast_impl=False),
    ),
}


@pytest.mark.parametrize("ids", [int, str])
@pytest.mark.parametrize("kind", EVALUATORS)
def test_equals_the_official_evaluator(kind, ids, tmp_path, monkeypatch):
    """Results are equal but for the order of sums, with NaN in the same places."""
    monkeypatch.setattr(multiprocessing, "cpu_count", lambda: 1)  # panopticapi adds up in order
    data = make_data(tmp_path, ids)
    ours, theirs = (run(make(), *data) for make in EVALUATORS[kind])
    for task, values in theirs.items():
        values = {k: v for k, v in values.items() if "Boundary" not in k and "min(" not in k}
        found = {key: ours[task][key] for key in values}
        assert found == pytest.approx(values, rel=1e-14, abs=0, nan_ok=True)
    if kind == "instances":
        assert 0 < ours["segm"]["AP"] < 100
        assert not any(math.isnan(ours["bbox"][f"AP{size}"]) for size in "sml")


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVALUATORS)
def test_outputs_stay_unchanged_and_reset_forgets_images(kind, data):
    evaluator = EVALUATORS[kind][0]()
    first = run(evaluator, *data)
    np.testing.assert_equal(run(evaluator, *data), first)


WRONG = np.zeros(SIZE, np.uint8)
WRONG[:2, :3] = 200
# Evaluator -> its faulty input: another PNG of the truth (bytes, pixels, None for a missing file)
# or another prediction.
REFUSALS = [
    ("panoptic", b"\x89PNG", r"000010\.png"),
    ("panoptic", None, r"000010\.png"),
    ("panoptic", lambda p: (p[0] + 200, p[1]), r"000010\.jpg \(image_id 10.*are missing"),
    ("panoptic", lambda p: (p[0] - 2, p[1]), "missing from its segments_info: -2"),
    ("panoptic", lambda p: (p[0] << 24, p[1]), "missing from its segments_info: 16777216"),
    ("panoptic", lambda p: (p[0][1:], p[1]), r"size \[149, 160\] .* \[150, 160\]"),
    ("instances", b"\x89PNG", r"000010\.png"),
    ("semantic", WRONG, r"000010\.png: .* 200 \(6 pixels\)"),
    ("semantic", WRONG.astype(np.uint16), r"000010\.png: .* 200 \(6 pixels\)"),
    ("semantic", np.full((24, 32, 3), (0, 1, 2), np.uint8), r"000010\.png: has the colours"),
    ("semantic", b"\x89PNG", r"000010\.png: the label image is .*broken or truncated"),
    ("semantic", None, r"000010\.png"),
    ("semantic", lambda s: s[:, :, 1:], r"000010\.png: .* \[150, 159\] .* \[150, 160\]"),
    ("semantic", lambda s: torch.arange(9.0)[:, None, None] + s[:1], "label 8, expected 0..6"),
]


@pytest.mark.parametrize("kind, given, message", REFUSALS)
def test_refusals_name_the_image(kind, given, message, tmp_path):
    (first,), (output,) = make_data(tmp_path, number=1)
    evaluator = EVALUATORS[kind][0]()
    key, folder = ("sem_seg",) * 2 if kind == "semantic" else ("panoptic_seg", "panoptic")
    png = tmp_path / folder / "000010.png"
    if callable(given):
        output[key] = given(output[key])
    elif given is None:
        png.unlink()
    else:
        png.write_bytes(given) if isinstance(given, bytes) else Image.fromarray(given).save(png)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run(evaluator, [first], [output])


def test_records_without_labels():
    DatasetCatalog.register("unlabelled", lambda: [{"file_name": "a.jpg"}])
    MetadataCatalog.get("unlabelled").set(stuff_classes=["a", "b"], ignore_label=255)
    with pytest.raises(ValueError, match="'unlabelled' has images with neither sem_seg_file"):
        SemSegEvaluator("unlabelled")


WORLD_SIZE = 2


def all_results(inputs, outputs, folder) -> dict:
    evaluators = [*(make() for make, _ in EVALUATORS.values()), PanopticDump(NAME, folder / "out")]
    found = [run(evaluator, inputs, outputs) or {} for evaluator in evaluators]
    return {task: values for results in found for task, values in results.items()}


def worker(rank: int, folder) -> None:
    """Evaluate this rank's half of the images, divided as by Detectron2's InferenceSampler."""
    dist.init_process_group("gloo", f"file://{folder}/init", world_size=WORLD_SIZE, rank=rank)
    inputs, outputs = make_data(folder / f"rank{rank}")
    half = len(inputs) // WORLD_SIZE
    mine = slice(rank * half, (rank + 1) * half)
    results = all_results(inputs[mine], outputs[mine], folder)
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    else:
        assert results == {}
    dist.barrier()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path, forks, monkeypatch):
    mp.start_processes(worker, (tmp_path,), nprocs=WORLD_SIZE)
    results = json.loads((tmp_path / "results.json").read_text())
    inputs, outputs = make_data(tmp_path / "one")
    one = all_results(inputs, outputs, tmp_path / "one")
    assert results["sem_seg"]["ECE"] > 0
    for task, values in one.items():  # two partial sums of IoUs are rounded differently ...
        assert results[task] == pytest.approx(values, rel=1e-13, nan_ok=True)
    # ... but as panopticapi does with two processes.
    monkeypatch.setattr(multiprocessing, "cpu_count", lambda: WORLD_SIZE)
    theirs = run(COCOPanopticEvaluator(NAME), inputs, outputs)["panoptic_seg"]
    found = {metric: results["panoptic_seg"][metric] for metric in theirs}
    assert found == pytest.approx(theirs, rel=1e-14, abs=0)
    metadata, saved = MetadataCatalog.get(NAME), tmp_path / "out/panoptic_predictions.json"
    quality = pq_compute(metadata.panoptic_json, str(saved), gt_folder=metadata.panoptic_root)
    assert 100 * quality["All"]["pq"] == pytest.approx(results["panoptic_seg"]["PQ"], rel=1e-14)


def test_predictions_that_panopticapi_reads(data, tmp_path):
    inputs, outputs = data
    outputs[0]["panoptic_seg"][1].append({"id": 77, "category_id": 0, "isthing": True})  # no pixel
    outputs[1]["panoptic_seg"] = (torch.zeros_like(outputs[1]["panoptic_seg"][0]), [])
    dump = PanopticDump(NAME, tmp_path / "out")
    dump.process(inputs[:3], outputs[:3])  # an interrupted run leaves no trace
    run(dump, inputs, outputs)
    metrics = run(PanopticEvaluator(NAME), inputs, outputs)["panoptic_seg"]
    metadata, file = MetadataCatalog.get(NAME), tmp_path / "out/panoptic_predictions.json"
    found = pq_compute(metadata.panoptic_json, str(file), gt_folder=metadata.panoptic_root)
    for metric in ("PQ", "SQ", "RQ"):
        assert metrics[metric] == pytest.approx(100 * found["All"][metric.lower()], rel=1e-12)
    saved = json.loads(file.read_text())
    assert [a["image_id"] for a in saved["annotations"]] == [i["image_id"] for i in inputs]
    for category in CATEGORIES:
        tp, fp, fn, pq, sq, isthing = (
            metrics[f"{metric}-{category['name']}"]
            for metric in ("TP", "FP", "FN", "PQ", "SQ", "isthing")
        )
        assert isthing == category["isthing"]
        assert pq == pytest.approx(sq * tp / (tp + fp / 2 + fn / 2))


class TestSemSegEvaluator:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_labels_of_the_scores_that_detectron2s_models_give(self, dtype):
        scores = torch.randn(9, 16, 12).mul(3).round().to(dtype)  # many ties
        rows = scores.permute(1, 2, 0).tolist()
        expected = [[pixel.index(max(pixel)) for pixel in row] for row in rows]
        assert labels_of_output({"sem_seg": scores}, 9).tolist() == expected
        with pytest.raises(ValueError, match="predicts 9 classes, but the data set has 19"):
            labels_of_output({"sem_seg": scores}, 19)

    def test_class_that_the_truth_lacks(self):
        """The truth has 6 pixels of class 0 and 2 of class 1; two are predicted as class 2."""
        truth = np.array([[0, 0, 0, 0, 0, 0, 1, 1, 9]], dtype=np.uint8)
        prediction = np.array([[0, 0, 0, 0, 0, 2, 1, 2, 2]])
        confusion = confusion_matrix(truth, prediction, num_classes=4, ignore_label=9)
        assert confusion.tolist() == [[5, 0, 1, 0], [0, 1, 1, 0], [0] * 4, [0] * 4]
        metrics = semantic_scores(confusion, "abcd")
        expected = {
            "mIoU": (5 / 6 + 1 / 2) / 2,
            "mIoU_truth_or_predicted": (5 / 6 + 1 / 2 + 0) / 3,
            "fwIoU": 6 / 8 * 5 / 6 + 2 / 8 * 1 / 2,
            "mACC": (5 / 6 + 1 / 2) / 2,
            "pACC": 6 / 8,
            **{"IoU-a": 5 / 6, "IoU-b": 1 / 2, "IoU-c": np.nan, "IoU-d": np.nan},
            **{"ACC-a": 5 / 6, "ACC-b": 1 / 2, "ACC-c": np.nan, "ACC-d": np.nan},
        }
        expected = {name: 100 * value for name, value in expected.items()}
        assert metrics == pytest.approx(expected, nan_ok=True)

    def test_ignored_pixels(self):
        ignored = np.full((2, 2), 255, dtype=np.uint8)
        confusion = confusion_matrix(ignored, np.ones((2, 2), dtype=int), 2, 255)
        assert np.isnan([*semantic_scores(confusion, "ab").values()]).all()
        truth = np.array([[0, 1, 2]], dtype=np.uint8)  # the ignored label is also a class
        confusion = confusion_matrix(truth, np.array([[0, 1, 1]]), num_classes=3, ignore_label=1)
        assert confusion.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


class TestBuildEvaluator:
    @pytest.fixture
    def cfg(self):
        cfg = get_cfg()
        cfg.MODEL.MASK_ON = True
        cfg.TEST.SAVE_PREDICTIONS = False
        return cfg

    @pytest.mark.slow
    @pytest.mark.parametrize("save", [False, True])
    def test_panoptic(self, data, cfg, tmp_path, save):
        cfg.TEST.SAVE_PREDICTIONS = save
        results = run(build_evaluator(cfg, NAME, tmp_path / "out"), *data)
        assert list(results) == ["panoptic_seg", "sem_seg", "bbox", "segm"]
        names = MetadataCatalog.get(NAME).thing_classes
        for task in TASKS:
            assert {f"AP-{name}" for name in names} < results[task].keys()
        files = {"confusion_matrix.csv", "confusion_matrix.png"}
        files |= {"panoptic_seg_per_image.csv", "sem_seg_per_image.csv"}
        if save:
            files |= {"panoptic_predictions", "panoptic_predictions.json"}
            files |= {"coco_instances_results.json", "instances_predictions.pth"}
        assert {path.name for path in (tmp_path / "out").iterdir()} == files

    @pytest.mark.slow
    @pytest.mark.parametrize("key", ["json_file", "panoptic_json"])
    def test_no_instance_is_predicted(self, data, cfg, tmp_path, key):
        """The truth is an instance JSON, or panoptic PNGs."""
        inputs, outputs = data
        outputs = [{**output, "instances": output["instances"][:0]} for output in outputs]
        if key == "panoptic_json":
            del MetadataCatalog.get(NAME).json_file
        results = run(build_evaluator(cfg, NAME, tmp_path), inputs, outputs)
        for task in TASKS:
            assert np.isnan(list(results[task].values())).all()

    def test_data_set_without_thing_classes(self, tmp_path, cfg):
        rng = np.random.default_rng(0)
        categories = samples_of.make_categories(0, 3)
        samples = samples_of.random_samples(rng, 3, categories)
        samples_of.register("stuff_only", tmp_path, categories, samples)
        data = samples_of.inputs_and_outputs("stuff_only", categories, samples, rng)
        results = run(build_evaluator(cfg, "stuff_only", tmp_path), *data)
        assert list(results) == ["panoptic_seg", "sem_seg"]
        assert np.isnan(results["panoptic_seg"]["PQ_th"])
        assert results["panoptic_seg"]["PQ"] == results["panoptic_seg"]["PQ_st"]

    @pytest.mark.slow
    @pytest.mark.parametrize("kind, tasks", [("sem_seg", ["sem_seg"]), ("coco", [*TASKS])])
    def test_other_types(self, data, cfg, tmp_path, kind, tasks):
        # Metadata refuses to change a value, so the data set gets another name.
        values = {k: v for k, v in MetadataCatalog.get(NAME).as_dict().items() if k != "name"}
        MetadataCatalog.get(kind).set(**{**values, "evaluator_type": kind})
        DatasetCatalog.register(kind, lambda: DatasetCatalog.get(NAME))
        assert list(run(build_evaluator(cfg, kind, tmp_path), *data)) == tasks

    def test_unknown_type(self, cfg, tmp_path):
        DatasetCatalog.register("odd_one", list)
        MetadataCatalog.get("odd_one").set(evaluator_type="lvis")
        with pytest.raises(ValueError, match="'odd_one' has evaluator_type 'lvis'; expected"):
            build_evaluator(cfg, "odd_one", tmp_path)
