"""The streaming evaluators against Detectron2's, on random data sets on disk."""

import json
import logging
import multiprocessing
import subprocess
import sys

import numpy as np
import pytest
import torch
from detectron2.config import get_cfg
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.evaluation import COCOPanopticEvaluator
from detectron2.evaluation import SemSegEvaluator as Detectron2SemSegEvaluator
from detectron2.structures import Boxes, Instances
from PIL import Image

from ocr_panoptic.evaluation.build import build_evaluator
from ocr_panoptic.evaluation.confusion import confusion_matrix, semantic_scores
from ocr_panoptic.evaluation.panoptic_dump import PanopticDump
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from ocr_panoptic.evaluation.sem_seg_predictions import labels_of_output
from support import panoptic_samples as samples_of

pytestmark = pytest.mark.usefixtures("clean_catalog")

NAME = "random_panoptic"
CATEGORIES = samples_of.make_categories(4, 6)


def load_labels(path, dtype):
    """Detectron2's own loader fails with NumPy 2."""
    return np.array(Image.open(path), dtype=dtype)


@pytest.fixture
def data(tmp_path):
    """Inputs and outputs of 12 images of a registered data set."""
    rng = np.random.default_rng(0)
    samples = samples_of.random_samples(rng, 12, CATEGORIES)
    samples_of.register(NAME, tmp_path, CATEGORIES, samples)
    return samples_of.inputs_and_outputs(NAME, CATEGORIES, samples, rng)


def run(evaluator, inputs, outputs, batch=5):
    evaluator.reset()
    for start in range(0, len(inputs), batch):
        evaluator.process(inputs[start : start + batch], outputs[start : start + batch])
    return evaluator.evaluate()


class TestPanopticEvaluator:
    def test_equals_detectron2(self, data, monkeypatch):
        monkeypatch.setattr(multiprocessing, "cpu_count", lambda: 1)
        ours = run(PanopticEvaluator(NAME), *data)["panoptic_seg"]
        theirs = run(COCOPanopticEvaluator(NAME), *data)["panoptic_seg"]  # spoils the outputs
        assert {metric: ours[metric] for metric in theirs} == theirs

    def test_metrics_of_a_class(self, data):
        metrics = run(PanopticEvaluator(NAME), *data)["panoptic_seg"]
        things, stuff = [], []
        for category in CATEGORIES:
            tp, fp, fn, pq, isthing = (
                metrics[f"{metric}-{category['name']}"]
                for metric in ("TP", "FP", "FN", "PQ", "isthing")
            )
            assert isthing == category["isthing"]
            sq = metrics[f"SQ-{category['name']}"]
            assert pq == pytest.approx(sq * tp / (tp + fp / 2 + fn / 2))
            (things if isthing else stuff).append(pq)
        assert metrics["PQ_th"] == pytest.approx(np.mean(things))
        assert metrics["PQ_st"] == pytest.approx(np.mean(stuff))

    def test_outputs_stay_as_they_were_and_reset_forgets(self, data):
        evaluator = PanopticEvaluator(NAME)
        first = run(evaluator, *data)
        assert run(evaluator, *data) == first

    def test_a_thing_and_a_stuff_class_of_one_name(self, data):
        MetadataCatalog.get(NAME).thing_classes[0] = "tree"
        MetadataCatalog.get(NAME).stuff_classes[1] = "tree"
        metrics = run(PanopticEvaluator(NAME), *data)["panoptic_seg"]
        assert metrics["isthing-tree (thing)"] == 1
        assert metrics["isthing-tree (stuff)"] == 0

    def test_some_images_only(self, data, caplog):
        inputs, outputs = data
        with caplog.at_level(logging.WARNING):
            run(PanopticEvaluator(NAME), inputs[:5], outputs[:5])
        assert "5 of the 12 images" in caplog.text

    def test_predictions_that_panopticapi_reads(self, data, tmp_path):
        inputs, outputs = data
        ids, segments_info = outputs[0]["panoptic_seg"]
        segments_info.append({"id": 77, "category_id": 0, "isthing": True})  # no pixel shows it
        outputs[1]["panoptic_seg"] = (torch.zeros_like(outputs[1]["panoptic_seg"][0]), [])
        dump = PanopticDump(NAME, tmp_path / "out")
        dump.process(inputs[:3], outputs[:3])  # a run that was broken off leaves no trace
        run(dump, inputs, outputs)
        metrics = run(PanopticEvaluator(NAME), inputs, outputs)["panoptic_seg"]
        metadata = MetadataCatalog.get(NAME)
        command = [sys.executable, "-m", "panopticapi.evaluation"]
        command += ["--gt_json_file", metadata.panoptic_json]
        command += ["--gt_folder", metadata.panoptic_root]
        command += ["--pred_json_file", tmp_path / "out" / "panoptic_predictions.json"]
        command += ["--pred_folder", tmp_path / "out" / "panoptic_predictions"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        printed = [line for line in output.splitlines() if line.startswith("All")]
        assert [float(number) for number in printed[0].split()[2:5]] == [
            pytest.approx(metrics[metric], abs=0.051) for metric in ("PQ", "SQ", "RQ")
        ]
        saved = json.loads((tmp_path / "out" / "panoptic_predictions.json").read_text())
        assert [a["image_id"] for a in saved["annotations"]] == [i["image_id"] for i in inputs]
        left = sorted(path.name for path in (tmp_path / "out").iterdir())
        assert left == ["panoptic_predictions", "panoptic_predictions.json"]

    def test_errors_name_the_image(self, data):
        inputs, outputs = data
        evaluator = PanopticEvaluator(NAME)
        ids, segments_info = outputs[0]["panoptic_seg"]
        for bad_outputs, message in [
            ({"panoptic_seg": (ids + 200, segments_info)}, "does not name"),
            ({"panoptic_seg": (ids[1:], segments_info)}, r"size \[23, 32\] .* \[24, 32\]"),
            (
                {"panoptic_seg": (ids, [{"id": 1, "category_id": 9, "isthing": True}])},
                "category_id 9, expected one of the 4 contiguous ids of things",
            ),
        ]:
            with pytest.raises(ValueError, match=rf"000010\.jpg \(image_id 10.*{message}"):
                evaluator.process(inputs[:1], [bad_outputs])
        with pytest.raises(ValueError, match=r"image_id 3 is not in the panoptic JSON"):
            evaluator.process([{**inputs[0], "image_id": 3}], outputs[:1])

    def test_faulty_truth(self, data, tmp_path):
        inputs, outputs = data
        png = tmp_path / "panoptic" / "000010.png"
        png.write_bytes(png.read_bytes()[:60])
        with pytest.raises(ValueError, match=r"000010\.png"):
            PanopticEvaluator(NAME).process(inputs, outputs)
        png.unlink()
        with pytest.raises(FileNotFoundError, match=r"000010\.png"):
            PanopticEvaluator(NAME).process(inputs, outputs)
        metadata = MetadataCatalog.get(NAME).as_dict()
        (tmp_path / "panoptic.json").write_text((tmp_path / "instances.json").read_text())
        with pytest.raises(ValueError, match=r"panoptic\.json: expected a panoptic JSON"):
            PanopticEvaluator(metadata["name"])


class TestSemSegEvaluator:
    def test_equals_detectron2(self, data):
        inputs, outputs = data
        for output in outputs:
            output["sem_seg"][:2] -= 9  # class 1 is never predicted
        evaluator = SemSegEvaluator(NAME)
        ours = run(evaluator, inputs, outputs)["sem_seg"]
        theirs = run(
            Detectron2SemSegEvaluator(NAME, sem_seg_loading_fn=load_labels), inputs, outputs
        )["sem_seg"]
        theirs = {k: v for k, v in theirs.items() if "Boundary" not in k and "min(" not in k}
        assert theirs.keys() <= ours.keys()
        assert ours == pytest.approx({**ours, **theirs}, rel=0, abs=0, nan_ok=True)
        assert evaluator.total.confusion.sum() > 0

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_labels_of_the_scores_that_detectron2s_models_give(self, dtype):
        generator = torch.Generator().manual_seed(0)
        scores = torch.randn(9, 16, 12, generator=generator).mul(3).round().to(dtype)  # many ties
        expected = [
            [max(range(9), key=lambda k: s[k]) for s in row] for row in scores.permute(1, 2, 0)
        ]
        assert labels_of_output({"sem_seg": scores}, 9, "image").tolist() == expected

    def test_labels_are_copied_from_a_gpu_in_16_bits(self, monkeypatch):
        copied = []
        monkeypatch.setattr(torch.Tensor, "cpu", lambda labels: copied.append(labels) or labels)
        labels_of_output({"labels": torch.zeros(2, 3).long()}, 9, "image")
        assert [labels.dtype for labels in copied] == [torch.int16]

    def test_class_that_the_truth_lacks(self):
        """Truth 6 x class 0, 2 x class 1; prediction calls one pixel of each class 2."""
        truth = np.array([[0, 0, 0, 0, 0, 0, 1, 1, 9]], dtype=np.uint8)
        prediction = np.array([[0, 0, 0, 0, 0, 2, 1, 2, 2]])
        confusion = confusion_matrix(truth, prediction, num_classes=4, ignore_label=9)
        assert confusion.tolist() == [[5, 0, 1, 0], [0, 1, 1, 0], [0] * 4, [0] * 4]
        metrics = semantic_scores(confusion, "abcd")
        assert metrics == pytest.approx(
            {
                "mIoU": 100 * (5 / 6 + 1 / 2) / 2,
                "mIoU_truth_or_predicted": 100 * (5 / 6 + 1 / 2 + 0) / 3,
                "fwIoU": 100 * (6 / 8 * 5 / 6 + 2 / 8 * 1 / 2),
                "mACC": 100 * (5 / 6 + 1 / 2) / 2,
                "pACC": 100 * 6 / 8,
                "IoU-a": 100 * 5 / 6,
                "IoU-b": 50,
                "IoU-c": np.nan,
                "IoU-d": np.nan,
                "ACC-a": 100 * 5 / 6,
                "ACC-b": 50,
                "ACC-c": np.nan,
                "ACC-d": np.nan,
            },
            nan_ok=True,
        )

    def test_nothing_but_ignored_pixels(self):
        ignored = np.full((2, 2), 255, dtype=np.uint8)
        confusion = confusion_matrix(ignored, np.ones((2, 2), dtype=int), 2, 255)
        assert np.isnan([*semantic_scores(confusion, "ab").values()]).all()

    def test_ignored_label_among_the_classes(self):
        truth = np.array([[0, 1, 2]], dtype=np.uint8)
        confusion = confusion_matrix(truth, np.array([[0, 1, 1]]), num_classes=3, ignore_label=1)
        assert confusion.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]

    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
    def test_label_outside_the_range(self, data, tmp_path, dtype):
        inputs, outputs = data
        label = np.array(Image.open(tmp_path / "sem_seg" / "000010.png")).astype(dtype)
        label[:2, :3] = 200
        Image.fromarray(label).save(tmp_path / "sem_seg" / "000010.png")
        with pytest.raises(ValueError, match=r"sem_seg/000010\.png: .* 200 \(6 pixels\)"):
            SemSegEvaluator(NAME).process(inputs, outputs)

    def test_errors_name_the_file(self, data, tmp_path):
        inputs, outputs = data
        evaluator = SemSegEvaluator(NAME)
        scores = outputs[0]["sem_seg"]
        with pytest.raises(ValueError, match=r"000010\.png: .* \[24, 31\] .* \[24, 32\]"):
            evaluator.process(inputs[:1], [{"sem_seg": scores[:, :, 1:]}])
        with pytest.raises(ValueError, match=r"predicts scores of 6 classes .* has 7.*NUM_CLASSES"):
            evaluator.process(inputs[:1], [{"sem_seg": scores[1:]}])
        with pytest.raises(ValueError, match=r"other\.jpg: no such image"):
            evaluator.process([{"file_name": "other.jpg"}], outputs[:1])
        png = tmp_path / "sem_seg" / "000010.png"
        Image.fromarray(np.zeros((24, 32, 3), dtype=np.uint8)).save(png)
        with pytest.raises(ValueError, match=r"000010\.png: expected one channel"):
            evaluator.process(inputs[:1], outputs[:1])
        png.write_bytes(png.read_bytes()[:50])
        with pytest.raises(ValueError, match=r"000010\.png: label PNG is broken or truncated"):
            evaluator.process(inputs[:1], outputs[:1])
        png.unlink()
        with pytest.raises(FileNotFoundError, match=r"000010\.png"):
            evaluator.process(inputs[:1], outputs[:1])
        assert not evaluator.counts.confusion.any()

    def test_data_set_without_labels(self):
        DatasetCatalog.register("unlabelled", lambda: [{"file_name": "a.jpg"}])
        MetadataCatalog.get("unlabelled").set(stuff_classes=["a", "b"], ignore_label=255)
        with pytest.raises(ValueError, match="'unlabelled' has records without 'sem_seg_file"):
            SemSegEvaluator("unlabelled")


def with_instances(outputs, per_image=2):
    """Outputs with boxes and masks in the upper left corner, of thing class 0."""
    result = []
    for output in outputs:
        height, width = output["sem_seg"].shape[1:]
        instances = Instances((height, width))
        instances.pred_boxes = Boxes(torch.tensor([[0.0, 0.0, 9.0, 9.0]]).repeat(per_image, 1))
        instances.scores = torch.linspace(0.9, 0.5, per_image)
        instances.pred_classes = torch.zeros(per_image, dtype=torch.int64)
        instances.pred_masks = torch.zeros(per_image, height, width, dtype=torch.bool)
        instances.pred_masks[:, :9, :9] = True
        result.append({**output, "instances": instances})
    return result


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
        inputs, outputs = data
        cfg.TEST.SAVE_PREDICTIONS = save
        results = run(build_evaluator(cfg, NAME, tmp_path / "out"), inputs, with_instances(outputs))
        assert list(results) == ["panoptic_seg", "sem_seg", "bbox", "segm"]
        names = MetadataCatalog.get(NAME).thing_classes
        for task in ("bbox", "segm"):
            assert {f"AP-{name}" for name in names} < results[task].keys()
        files = {"confusion_matrix.csv", "confusion_matrix.png"}
        files |= {"panoptic_seg_per_image.csv", "sem_seg_per_image.csv"}
        if save:
            files |= {"panoptic_predictions", "panoptic_predictions.json"}
            files |= {"coco_instances_results.json", "instances_predictions.pth"}
        assert {path.name for path in (tmp_path / "out").iterdir()} == files

    @pytest.mark.slow
    @pytest.mark.parametrize("per_image", [0, 2])
    def test_truth_without_instances(self, data, cfg, tmp_path, per_image, caplog):
        instances = json.loads((tmp_path / "instances.json").read_text())
        instances["annotations"] = []
        (tmp_path / "instances.json").write_text(json.dumps(instances))
        inputs, outputs = data
        with caplog.at_level(logging.INFO):
            results = run(
                build_evaluator(cfg, NAME, tmp_path), inputs, with_instances(outputs, per_image)
            )
        for task in ("bbox", "segm"):
            assert np.isnan(list(results[task].values())).all()
        assert ("shown as NaN" if per_image else "No predictions") in caplog.text

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

    def test_other_types(self, data, cfg, tmp_path):
        metadata = MetadataCatalog.get(NAME)
        inputs, outputs = data
        for evaluator_type, tasks in (("sem_seg", ["sem_seg"]), ("coco", ["bbox", "segm"])):
            # Metadata refuses to change a value, so the data set is known by another name.
            other = f"{NAME}_{evaluator_type}"
            values = {k: v for k, v in metadata.as_dict().items() if k != "name"}
            MetadataCatalog.get(other).set(**{**values, "evaluator_type": evaluator_type})
            DatasetCatalog.register(other, lambda: DatasetCatalog.get(NAME))
            evaluator = build_evaluator(cfg, other, tmp_path)
            assert list(run(evaluator, inputs, with_instances(outputs))) == tasks

    def test_unknown_type(self, cfg, tmp_path):
        MetadataCatalog.get("odd_one").set(evaluator_type="lvis")
        with pytest.raises(ValueError, match="'odd_one' has evaluator_type 'lvis'; expected"):
            build_evaluator(cfg, "odd_one", tmp_path)
