"""Fitted merges: replays equal the merge itself, counted by PanopticQuality."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch
import yaml
from detectron2.data import MetadataCatalog
from detectron2.structures import Instances

from ocr_panoptic.cli import fit_merge as command
from ocr_panoptic.config.files import load_config, values_by_key
from ocr_panoptic.evaluation.panoptic_quality import PanopticQuality
from ocr_panoptic.evaluation.segment_matching import SegmentOverlaps
from ocr_panoptic.modeling.panoptic_merge import MergeRules, merge_panoptic, rules_of_config
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.trained_model import trained_model
from ocr_panoptic.workbench.fitting import merge_fit
from ocr_panoptic.workbench.fitting.merge_fit import KeptPredictions, fit_merge
from ocr_panoptic.workbench.fitting.merge_replay import Rules, keep_image, replay
from support.tiny_runs import OCR_CONFIG, SEGMENTS

PRESENT = MergeRules(0.5, (0.5, 0.5), (0.0, 0.0))


def kept(
    scores_of_wrong: list[float], of_true: float = 0.9, true_classes: tuple[int, ...] = (1, 2, 3)
) -> KeptPredictions:
    """Return images with a true instance and a wrong instance, on stuff, for each class."""
    truth = np.zeros((8, 8), np.int64)
    truth[:2], truth[2:4], truth[4:] = 1, 2, 3
    truth[~np.isin(truth, true_classes)] = 0
    names = [{"id": i, "category_id": i} for i in true_classes]
    masks = np.zeros((4, 8, 8), bool)
    masks[0, :2] = masks[1, 2:4] = True
    masks[2, 4:6, :4] = masks[3, 6:, :4] = True
    scores, classes = np.array([of_true, of_true, *scores_of_wrong]), np.array([0, 1, 0, 1])
    order = np.argsort(-scores, kind="stable")
    found = scores[order], classes[order], masks[order], np.where(truth == 3, 1, 0)
    image = keep_image(*found, truth, names, [1, 2, 3])
    return KeptPredictions([image] * 20, np.array([0, 1, -1, 2]), 2, 3)


def test_wrong_instances_below_a_threshold_are_removed():
    """Before, each thing has PQ 1 / 1.5, and stuff has 16 of 32 pixels, too few for a match."""
    before, (alike, by_class) = fit_merge(kept([0.6, 0.6]), PRESENT)
    assert before == pytest.approx(100 * (2 / 1.5) / 3)
    assert alike.held_out == alike.fitted == 100 and alike.is_improvement
    assert alike.gain == pytest.approx(100 - before) and by_class.held_out == 100
    assert set(alike.rules.scores) == {0.65}


def test_each_class_has_its_own_threshold():
    """No threshold helps class a, whose wrong instances have higher scores than its right ones."""
    before, (_, by_class) = fit_merge(kept([0.95, 0.6]), PRESENT)
    first, second = by_class.rules.scores
    assert second > 0.6 and by_class.held_out > before


def test_the_reported_quality_is_of_held_out_images():
    """Half of the images need a threshold above 0.6, half need a threshold below 0.4."""
    wrong_above, right_below = kept([0.6, 0.6]), kept([0.1, 0.1], of_true=0.4)
    images = wrong_above._replace(images=wrong_above.images[:5] + right_below.images[:5])
    before, fits = fit_merge(images, PRESENT, folds=2)
    for fit in fits:
        assert fit.fitted > before and fit.held_out == before and not fit.is_improvement


def test_perfect_predictions_gain_nothing():
    before, fits = fit_merge(kept([0.1, 0.1]), PRESENT)
    assert before == 100
    for fit in fits:
        assert fit.rules == PRESENT and fit.gain == 0 and not fit.is_improvement
    with pytest.raises(ValueError, match="--folds is 21; expected .* number of images \\(20\\)"):
        fit_merge(kept([0.1, 0.1]), PRESENT, folds=21)


def test_a_class_without_truth_does_not_matter():
    """A fit must not remove its wrong instances, which cover 8 of 32 stuff pixels."""
    images = kept([0.1, 0.9], of_true=0.6, true_classes=(1, 3))
    before, fits = fit_merge(images, PRESENT)
    assert before == pytest.approx(100 * (1 + 0.75) / 2)
    assert [(fit.rules, fit.gain) for fit in fits] == [(PRESENT, 0), (PRESENT, 0)]


@pytest.mark.slow
def test_a_run(trained, tmp_path, monkeypatch, capsys):
    """PQ equals the evaluation's, and a merge with the written config gives the fitted PQ."""
    args = trained(*SEGMENTS, config=OCR_CONFIG)
    run = tmp_path / "run"
    opts = [*args.opts, "MODEL.WEIGHTS", str(run / "model_final.pth")]
    model = trained_model(args.config_file, None, opts, needs_data=True)
    cfg, kept = model.cfg, merge_fit.kept_predictions(model)
    assert all((np.diff(image.scores) <= 0).all() for image in kept.images)
    rules = rules_of_config(cfg)
    before, (fit, _) = fit_merge(kept, rules, folds=2)
    metrics = json.loads((run / "inference/tiny_val/metrics.json").read_text())["panoptic_seg"]
    assert before == metrics["PQ"]
    counts = np.zeros((1, kept.num_categories, 4))
    in_use = Rules(*(np.array([field]) for field in dataclasses.astuple(rules)))
    for image in kept.images:
        replay(image, in_use, kept.categories, counts)
    metadata = MetadataCatalog.get("tiny_val")
    names = [*metadata.thing_classes, *metadata.stuff_classes]
    for i, name in zip(kept.categories, names, strict=True):
        found = [metrics.get(f"{kind}-{name}") for kind in ("TP", "FP", "FN")]
        assert i < 0 or counts[0, i, 1:].tolist() == found
    assert counts[..., 2].sum() > 0 and counts[..., 3].sum() > 0
    words = ["--config-file", args.config_file, "--folds", "2", *opts]
    changed = dataclasses.replace(rules, stuff_areas=(16.0,) * len(rules.stuff_areas))
    fitted = fit._replace(rules=changed, gain=1.0, interval=(0.5, 1.5))
    monkeypatch.setattr(merge_fit, "fit_merge", lambda *_: (before, [fitted]))
    command.run(command.argument_parser().parse_args(words))
    printed = capsys.readouterr().out
    assert re.search(rf"\| unchanged +\| +{before:.2f} \|", printed)
    written = load_config(str(run / "merge.yaml"), [])
    complete_config(written)
    assert rules_of_config(written) == fitted.rules
    cfg.MODEL.PANOPTIC_FPN.COMBINE.STUFF_AREA_LIMIT = 16
    assert json.dumps(values_by_key(written)) == json.dumps(values_by_key(cfg))


@pytest.mark.parametrize("scores", [(0.2, 0.7), (0.3, 0.3)])
def test_the_written_config_has_the_rules(scores, tmp_path):
    rules = MergeRules(0.3, scores, (16.0, 4.0) if scores[0] < scores[1] else (64.0, 64.0))
    file = tmp_path / "merge.yaml"
    combine = merge_fit.rules_fragment(rules)
    file.write_text(yaml.safe_dump({"MODEL": {"PANOPTIC_FPN": {"COMBINE": combine}}}))
    classes = ("MODEL.ROI_HEADS.NUM_CLASSES", "2", "MODEL.SEM_SEG_HEAD.NUM_CLASSES", "2")
    cfg = load_config(str(file), [*classes])
    assert rules_of_config(cfg) == rules
    cfg.MODEL.PANOPTIC_FPN.COMBINE.CLASS_CONFIDENCE = [0.5]
    with pytest.raises(ValueError, match="CLASS_CONFIDENCE has length 1; .* each of the 2 thing"):
        rules_of_config(cfg)


THINGS, LABELS = 3, 4
# Category ids of the thing classes, and of the labels 1, 2, 3.
IDS = [12, 5, 7], [3, 40, 11]
CATEGORIES = [{"id": i, "isthing": int(i in IDS[0])} for i in (3, 5, 7, 11, 12, 40)]


def random_image(rng: np.random.Generator):
    height, width, n = 24, 30, int(rng.integers(0, 9))

    def boxes(count: int) -> np.ndarray:
        masks = np.zeros((count, height, width), dtype=bool)
        for mask in masks:
            top, left = rng.integers(0, (height - 4, width - 4))
            mask[top : top + rng.integers(2, 14), left : left + rng.integers(2, 14)] = True
        return masks

    masks = boxes(n)
    labels = np.repeat(np.repeat(rng.integers(0, LABELS, (6, 6)), 4, 0), 5, 1)
    labels[rng.random(labels.shape) < 0.05] = 2
    ids, segments = np.zeros((height, width), np.int64), []
    of_label = [0, *IDS[1]]
    for label in range(1, LABELS):
        ids[labels == label] = 100 + label
        segments.append({"id": 100 + label, "category_id": of_label[label]})
    truths = [mask for mask in masks if rng.random() < 0.6] + list(boxes(3))
    for i, mask in enumerate(truths):
        ids[mask] = 60 - i
        is_crowd = int(rng.random() < 0.2)
        category = IDS[0][int(rng.integers(THINGS))]
        segments.append({"id": 60 - i, "category_id": category, "iscrowd": is_crowd})
    ids[:2] = 999
    instances = Instances((height, width))
    instances.scores = torch.tensor(rng.integers(1, 20, n) / 20, dtype=torch.float32)
    instances.scores = instances.scores.sort(descending=True)[0]
    instances.pred_classes = torch.tensor(rng.integers(0, THINGS, n))
    instances.pred_masks = torch.tensor(masks)
    return instances, torch.tensor(labels), ids, segments


@pytest.mark.slow
def test_equals_the_merge_and_its_panoptic_quality():
    """For 60 settings on 30 images the counts are equal, IoU sums to the last digit."""
    rng = np.random.default_rng(0)
    settings = [
        MergeRules(
            float(rng.integers(0, 5)) / 4,
            tuple(rng.integers(0, 20, THINGS) / 20),
            tuple(map(float, rng.integers(0, 80, LABELS))),
        )
        for _ in range(60)
    ]
    fields = zip(*map(dataclasses.astuple, settings), strict=True)
    rules = Rules(*map(np.array, fields))
    order = [category["id"] for category in CATEGORIES]
    rows = np.array([order.index(i) for i in IDS[0]] + [-1] + [order.index(i) for i in IDS[1]])
    totals = np.zeros((len(settings), len(CATEGORIES), 4))
    expected = [PanopticQuality(CATEGORIES) for _ in settings]
    for _ in range(30):
        instances, labels, ids, segments = random_image(rng)
        found = instances.scores, instances.pred_classes, instances.pred_masks, labels
        kept = keep_image(*(tensor.numpy() for tensor in found), ids, segments, order)
        assert kept.pixels.sum() == ids.size
        replay(kept, rules, rows, totals)
        for setting, quality in zip(settings, expected, strict=True):
            merged, found = merge_panoptic(instances, labels, setting)
            for segment in found:
                known = IDS[0] if segment["isthing"] else [0, *IDS[1]]
                segment["category_id"] = known[segment["category_id"]]
            quality.add(SegmentOverlaps(ids, segments, merged.numpy(), found).matches())
    assert (totals == np.stack([quality.statistics() for quality in expected])).all()
    assert (totals.sum(axis=(0, 1)) > 50).all()  # all kinds of counts occur
