# Everything sets itself up: `make test` and `make demo` work on a fresh clone with Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help setup test demo lint format bench results lock clean

help:
	@echo "make demo    distil the student of the bundled lab"
	@echo "make test    run the tests"
	@echo "make setup   create $(VENV) from requirements.lock"
	@echo "make lint    check style and types  make format  apply the style"
	@echo "make bench   run the benchmarks     make lock    pin the dependencies anew"
	@echo "make results write docs/results.md from docs/results"
	@echo "make clean   remove $(VENV) and caches"

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "ForkLeft needs Python 3.11 or newer, found $$($(PYTHON) --version); try make PYTHON=python3.11"; exit 1; }
	@echo "Setting up $(VENV): PyTorch and what else requirements.lock names, 2 GB on disk and more with a GPU's libraries."
	@echo "This takes several minutes, most of them for the download, and pip says nothing meanwhile; it is done once."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --requirement requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@echo "$(VENV) is ready."
	@touch $@

# A process a core: the tests are many and small, each on one thread.
test: $(READY)
	$(BIN)/python -m pytest -n logical --maxprocesses 4

demo: $(READY)
	$(BIN)/forkleft demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy forkleft

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# glibc gives buffers above 32 MB back to the kernel after every operation, which then clears them anew; long
# sequences on a CPU spend a quarter of their time on that. docs/training.md says it to users.
bench: $(READY)
	MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=67108864 \
	  $(BIN)/python -m benchmarks

# The committed results of the studies as a page; `forkleft study run FILE --output docs/results` adds to them.
results: $(READY)
	$(BIN)/forkleft study page docs/results --output docs/results.md

# PyTorch is named first and exactly: its local suffix (+cpu, +cu130) differs from machine to machine.
lock:
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet torch==2.13.0
	$(VENV)-lock/bin/pip install --quiet --editable '.[dev]'
	$(VENV)-lock/bin/pip freeze --exclude-editable | sed -E '/^nvidia|^cuda|^triton/d; s/\+(cpu|cu[0-9]+)$$//' > requirements.lock
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) $(VENV)-lock build dist .pytest_cache .ruff_cache .mypy_cache benchmarks/results.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
