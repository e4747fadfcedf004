"""Fixtures for all tests."""

import functools
import logging
import os
import shutil
import signal
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.structures import BitMasks, Boxes, Instances
from detectron2.utils.logger import setup_logger
from torch._subclasses.fake_tensor import FakeTensorMode

from generate_scenes import generate_scenes
from ocr_panoptic.cli.train import argument_parser
from ocr_panoptic.config.files import load_config
from ocr_panoptic.data import catalog
from support.tiny_runs import OCR_CONFIG, PLAIN_CONFIG, ROOT, TINY, TINY_OCR
from train_net import main

# The tests' tensors are small, so a second thread mostly waits.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for processes that tests start
# If a test ran this process's first backward pass under a profiler, forks of this process
# (support/forked.py) could not train. So the first one runs here.
torch.ones(1, requires_grad=True).sum().backward()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory):
    """Keep the tests' data sets and cache apart from the user's, such as `make demo`'s data."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["DETECTRON2_DATASETS"] = str(tmp_path_factory.mktemp("data_sets"))


@pytest.fixture(autouse=True)
def no_determinism():
    """After each test, switch off the deterministic algorithms that --deterministic switches on."""
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def own_signals():
    """Restore the signal handlers that a program, or torchrun's agent, replaces in a test."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def no_fast_bfloat16(monkeypatch):
    """Make predictions use float32 on every machine, even if its CPU computes bfloat16 fast."""
    monkeypatch.setattr("ocr_panoptic.predict.run_info.cpu_computes_bfloat16", lambda: False)


@pytest.fixture(autouse=True)
def fresh_loggers(monkeypatch):
    """Give runs' log messages to caplog, and remove the runs' log handlers after the test."""
    monkeypatch.setattr("detectron2.utils.logger.setup_logger", _setup_propagating_logger)
    yield
    for name in ("ocr_panoptic", "detectron2", "fvcore"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(logging.NOTSET)


_setup_propagating_logger = functools.partial(setup_logger, enable_propagation=True)
_setup_propagating_logger.cache_clear = setup_logger.cache_clear


# Detectron2's own data sets, before a test lets this package replace some.
DETECTRON2S = {id(c): dict(c.data) for c in (DatasetCatalog, MetadataCatalog)}


@pytest.fixture(scope="session")
def pretended_gpu():
    """Skip the test if fake tensors on a GPU need a driver, as in PyTorch 2.9."""
    try:
        with FakeTensorMode():
            torch.empty(1, device="cuda").uniform_()
    except RuntimeError as error:
        pytest.skip(f"no GPU to pretend: {str(error).splitlines()[0]}")


@pytest.fixture
def clean_catalog(monkeypatch):
    """Start the test without this package's data sets, and undo the test's registrations."""
    for theirs in (DatasetCatalog, MetadataCatalog):
        kept = {k: v for k, v in theirs.data.items() if k not in catalog._registered}
        monkeypatch.setattr(theirs, "data", {**kept, **DETECTRON2S[id(theirs)]})
    monkeypatch.setattr(catalog, "_registered", {})


@pytest.fixture
def small_cfg():
    """
    Return a function that makes a quick panoptic config with ResNet-18, for the CPU.

    The head is OCR's ("ocr") or Detectron2's ("plain"). The config has 2 thing classes, 3 stuff
    classes, and the given overrides KEY VALUE ...
    """

    def make(head: str = "ocr", *opts: object) -> CfgNode:
        name = {"ocr": "panoptic_fpn_ocr_R_18_scenes", "plain": "panoptic_fpn_R_18_scenes"}[head]
        cfg = load_config(str(ROOT / f"configs/quick_schedules/{name}.yaml"), list(opts))
        cfg.MODEL.DEVICE = "cpu"
        cfg.MODEL.ROI_HEADS.NUM_CLASSES = 2
        cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 4
        for norm in (cfg.MODEL.OCR, cfg.MODEL.RESNETS):
            norm.NORM = "BN" if norm.NORM == "SyncBN" else norm.NORM
        return cfg

    return make


@pytest.fixture
def batch():
    """
    Return a function that makes a panoptic training batch of random images.

    Each image has one rectangular thing, and vertical stripes of labels below two void rows.
    """

    def make(
        num_images: int = 2, height: int = 64, width: int = 96, num_classes: int = 4
    ) -> list[dict]:
        generator = torch.Generator().manual_seed(0)
        records = []
        for i in range(num_images):
            mask = torch.zeros(1, height, width, dtype=torch.bool)
            mask[:, 16:48, 16 : 56 + 8 * i] = True
            instances = Instances((height, width))
            instances.gt_masks = BitMasks(mask)
            instances.gt_boxes = Boxes(torch.tensor([[16.0, 16.0, 56.0 + 8 * i, 48.0]]))
            instances.gt_classes = torch.tensor([i % 2])
            labels = torch.arange(width) * num_classes // width
            labels = labels.expand(height, width).clone()
            labels[:2] = 255
            image = 64.0 * labels.clamp(max=3) + 30 * torch.randn(
                3, height, width, generator=generator
            )
            records.append(
                dict(image=image, instances=instances, sem_seg=labels, height=height, width=width)
            )
        return records

    return make


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory) -> Path:
    """
    Return a folder for DETECTRON2_DATASETS with generated scenes, 8 for training and 4 to validate.

    The panoptic data sets are tiny_train and tiny_val, the semantic ones tiny_sem_train and
    tiny_sem_val.
    """
    root = tmp_path_factory.mktemp("datasets")
    generate_scenes(root / "tiny", num_train=8, num_val=4, size=64, seed=1)
    return root


@pytest.fixture
def tiny_data(tiny_root, monkeypatch) -> Path:
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tiny_root))
    return tiny_root


@pytest.fixture
def make_args(tmp_path):
    """Return a function that makes the parsed arguments of train_net.py for a tiny run."""

    def make(*opts: object, config: Path = OCR_CONFIG, flags: tuple[str, ...] = ()) -> Namespace:
        settings = ["OUTPUT_DIR", str(tmp_path / "run"), *TINY]
        settings += TINY_OCR if config != PLAIN_CONFIG else []
        settings += ["DATASETS.TRAIN", "('tiny_train',)", "DATASETS.TEST", "('tiny_val',)"]
        return argument_parser().parse_args(
            ["--config-file", str(config), *flags, *settings, *map(str, opts)]
        )

    return make


FINISHED_RUNS: dict[tuple[Path, tuple], Path] = {}


@pytest.fixture
def trained(tiny_data, make_args, tmp_path, tmp_path_factory):
    """
    Return a function that trains and evaluates a tiny run, and returns the run's arguments.

    Runs with equal settings are trained only once; each test gets a copy of the run's files.
    """

    def make(*opts: object, config: Path = OCR_CONFIG) -> Namespace:
        args = make_args(*opts, config=config)
        if (config, opts) in FINISHED_RUNS:
            shutil.copytree(FINISHED_RUNS[config, opts], tmp_path / "run")
        else:
            main(args)
            FINISHED_RUNS[config, opts] = tmp_path_factory.mktemp("finished") / "run"
            shutil.copytree(tmp_path / "run", FINISHED_RUNS[config, opts])
        return args

    return make


@pytest.fixture
def forks(monkeypatch):
    """
    Make torch fork this process, which has already imported everything, to start processes.

    The forks see no GPU, because CUDA does not work in forked processes.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    fork = functools.partial(mp.start_processes, start_method="fork")
    monkeypatch.setattr(mp, "start_processes", fork)
