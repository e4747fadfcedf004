# `make` prints the targets. `make demo PYTHON=/path/to/python` uses an environment of your own; a
# variable PYTHON of the shell does not count, as it often names an interpreter without the packages.
VENV := .venv
BASE_PYTHON ?= python3

ifneq ($(origin PYTHON),command line)
PYTHON := $(VENV)/bin/python
ENV := $(VENV)/.complete
endif

.DEFAULT_GOAL := help
.PHONY: help env install scenes camvid announce-demo announce-demo-semantic demo demo-semantic
.PHONY: announce-demo-finetune demo-finetune test test-fast test-newest test-oldest test-gpu lint
.PHONY: pins site format

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(ENV)  ## create .venv with pinned versions (done by the other targets when absent)

$(VENV)/.complete: $(wildcard requirements/*.txt) tools/create_env.sh tools/install_detectron2.sh
	tools/create_env.sh $(VENV) $(BASE_PYTHON)
	touch $@

install:  ## install into PYTHON=/path/to/python, an environment of your own that has PyTorch
	tools/install.sh $(PYTHON)

# The demos' config and what differs from it, context scheme, run folder, and data (Detectron2's
# variable names the root of all data sets).
demo: CONFIG ?= configs/quick_schedules/panoptic_fpn_ocr_R_18_scenes.yaml
demo: KEYS ?= $(OWN_DATA_HEAD)
demo: OUTPUT ?= output/demo
demo: DATA = $(SCENES)/scenes.yaml
demo: MINUTES := 3
demo-semantic: CONFIG ?= configs/quick_schedules/semantic_ocr_R_18_scenes.yaml
demo-semantic: OUTPUT ?= output/demo_semantic
demo-semantic: DATA = $(SCENES)/scenes_sem.yaml
demo-semantic: MINUTES := 2
demo-finetune: CONFIG ?= configs/quick_schedules/semantic_ocr_Lite0_scenes.yaml
demo-finetune: KEYS ?= $(KEYS_$(FINETUNE))
demo-finetune: OUTPUT ?= output/demo_finetune
demo-finetune: DATA = $(DATA_$(FINETUNE))
demo-finetune: MINUTES := 2
SCHEME ?= OCR
# As Custom-PanopticSegmentation/panoptic_fpn_ocr_R_50.yaml.
OWN_DATA_HEAD := MODEL.SEM_SEG_HEAD.LOSS_WEIGHT 0.5 MODEL.OCR.COARSE_LOSS_WEIGHT 0.5 \
    MODEL.OCR.RESIDUAL True MODEL.OCR.COARSE_START detectron2 MODEL.OCR.DOWNSAMPLE 2 \
    MODEL.SEM_SEG_HEAD.LOSS_TYPE 'cross_entropy + dice'
export DETECTRON2_DATASETS ?= datasets
# Threads that wait for others sleep; where cores are shared they would hold them up.
export OMP_WAIT_POLICY ?= PASSIVE
SCENES := $(DETECTRON2_DATASETS)/scenes
# demo-finetune has CamVid where CAMVID is its folder or where it has been named once, else the scenes.
CAMVID ?=
DATA_scenes = $(SCENES)/scenes_sem.yaml
DATA_camvid = $(DETECTRON2_DATASETS)/camvid/camvid.yaml
KEYS_camvid := INPUT.MIN_SIZE_TRAIN '(180,)' INPUT.MIN_SIZE_TEST 180 INPUT.CROP.SIZE '[160, 224]'
FINETUNE := $(if $(CAMVID)$(wildcard $(DETECTRON2_DATASETS)/camvid/camvid.yaml),camvid,scenes)

scenes: $(ENV)
	$(PYTHON) datasets/generate_scenes.py --output $(SCENES)

camvid: $(ENV)
	$(if $(CAMVID),$(PYTHON) datasets/prepare_camvid.py $(CAMVID))

announce-demo announce-demo-semantic announce-demo-finetune:
	@echo "make $(@:announce-%=%) takes about $(MINUTES) minutes on 2 CPU cores, to $(OUTPUT)/index.html"

demo: announce-demo scenes  ## sample data, training of Panoptic-FPN + OCR, evaluation, a page of pictures
	$(train-and-report)

demo-semantic: announce-demo-semantic scenes  ## the same for semantic segmentation with OCR
	$(train-and-report)

demo-finetune: announce-demo-finetune $(FINETUNE)  ## from ImageNet weights, on CAMVID=folder or the scenes
	$(train-and-report)

define train-and-report
$(PYTHON) train_net.py --overwrite --config-file $(CONFIG) --data $(DATA) \
    $(KEYS) MODEL.CONTEXT.NAME $(SCHEME) OUTPUT_DIR $(OUTPUT)
$(PYTHON) -m ocr_panoptic report --config-file $(OUTPUT)
endef

test: $(ENV)  ## run the tests
	$(PYTHON) -m pytest

test-fast: $(ENV)  ## run the core of them, in about a minute
	$(PYTHON) -m pytest -m "not slow"

TESTS ?= -m "not slow"

test-newest: build/newest/.complete  ## run the same with the newest packages; all tests with TESTS=
	build/newest/bin/python -m pytest $(TESTS)

test-oldest: build/oldest/.complete  ## run the same with the oldest that pyproject.toml allows
	build/oldest/bin/python -m pytest $(TESTS)

# Remove build/newest to get the newest packages of another day.
build/newest/.complete build/oldest/.complete: build/%/.complete: pyproject.toml tools/create_env.sh
	tools/create_env.sh build/$* $(BASE_PYTHON) $*
	touch $@

test-gpu: $(ENV)  ## run the tests that need a GPU, or two
	$(PYTHON) -m pytest -m gpu

lint: $(ENV)  ## check style, format and types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

PYTHONS := 3.10 3.11 3.12 3.13

pins: $(ENV)  ## check that the pinned versions have a solution for each Python, in about a minute
	for python in $(PYTHONS); do $(PYTHON) -m uv pip compile --quiet --no-config \
	    --python-version $$python --python-platform x86_64-manylinux_2_28 \
	    --output-file /dev/null requirements/dev.txt || exit 1; done

PAGES = README.md CHANGELOG.md CONTRIBUTING.md LICENSE train_net.py docs datasets studies examples configs ocr_panoptic tests

site: $(ENV)  ## build the pages as a site with a search, build/site; a broken link is an error
	rm -rf build/pages && mkdir -p build/pages
	git ls-files $(PAGES) | xargs cp --parents -t build/pages
	$(PYTHON) -m mkdocs build

format: $(ENV)  ## rewrite to the project's format
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
