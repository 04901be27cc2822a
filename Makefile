# `make train` and `make test` do everything on a machine with Python >= 3.11.
PYTHON ?= python3
BIN := .venv/bin
# A file of versions for a new environment, such as constraints.txt; by default the
# newest that fit.
CONSTRAINTS ?=
# Whether the site runs the tutorials: off or force.
NOTEBOOKS ?= off

.PHONY: train test test-long test-warnings test-leaks test-x64 mutants fuzz soak gpu-compilation bench bench-record bench-peers docs figures explorer explorer-serve lint types clean

# Large pages of memory, where Linux gives them on request: docs/how_to/cpus.md.
train bench bench-record bench-peers records record-%: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

train: .venv
	$(BIN)/python -m experiments.train_capsnet --workdir=runs/digits \
	  --flagfile=experiments/presets/capsnet/digits.cfg

test: .venv
	$(BIN)/python -m pytest

# What `test` leaves out: every run of a binary but one, kills, damages, presets.
# Checks of ONNX files run if `make .venv-onnx` was run before.
test-long: .venv
	$(BIN)/python -m pytest -m long --durations=40

# The tests of kernels and models once more: a warning is an error, a tracer
# that outlives its function is one, numbers without a dtype are float64.
STRICT := $(BIN)/python -m pytest tests/kernels tests/capjax
test-warnings: .venv
	$(STRICT) -W error

test-leaks: .venv
	JAX_CHECK_TRACER_LEAKS=1 $(STRICT)

test-x64: .venv
	JAX_ENABLE_X64=1 $(STRICT)

# Faults put into the code, each of which its test must find.
mutants: .venv
	PYTHONPATH=tests/helpers:. $(BIN)/python -u tests/helpers/mutants.py

# Kernels at arguments of every magnitude; a table of what is not finite.
fuzz: .venv
	PYTHONPATH=tests/helpers:. $(BIN)/python -u tests/helpers/fuzz.py

# Kills 20 runs, damages 80 files, fills a disk; prints what was lost.
soak: .venv
	PYTHONPATH=tests/helpers:. $(BIN)/python -u tests/helpers/soak.py

# Updates compiled for a GPU, which needs none but 3 GB of CUDA's libraries.
gpu-compilation: .venv-cuda/installed
	PYTHONPATH=tests/helpers:. .venv-cuda/bin/python -u \
	  tests/helpers/gpu_compilation.py

# Every benchmark in turn, then one table of all; the results as JSON are in
# $(BENCH). `make bench-record LOAD='otherwise idle'` writes results/benchmarks.md.
# After `make bench-peers` a CapsNet in PyTorch is timed in the same run.
BENCH := build/benchmarks.jsonl
LOAD ?= otherwise idle
PEER := .venv-torch/bin/python
RACED = $(if $(wildcard .venv-torch/installed),--peer=$(PEER))
bench: .venv
	mkdir -p $(dir $(BENCH)) && rm -f $(BENCH)
	for name in routing row_sums capsnet boltzmann em scae systems start_up; do \
	  $(BIN)/python -m experiments.benchmarks.$$name --json=$(BENCH) \
	    $$([ $$name != capsnet ] || echo $(RACED)) || exit 1; \
	done
	$(BIN)/python -m experiments.benchmarks.streaming
	$(BIN)/python -m experiments.benchmarks.table $(BENCH)

bench-record: bench
	$(BIN)/python -m experiments.benchmarks.table $(BENCH) --load='$(LOAD)' \
	  --markdown=results/benchmarks.md

# PyTorch in an environment of its own, and CapsNet raced with it alone. TORCH is
# what pip installs; on Linux it may be a large build for CUDA.
TORCH ?= torch==2.13.0
bench-peers: .venv .venv-torch
	$(BIN)/python -m experiments.benchmarks.capsnet --notextbook --peer=$(PEER)

.venv-torch: .venv-torch/installed
.venv-torch/installed:
	$(PYTHON) -m venv .venv-torch
	$(PEER) -m pip install --quiet '$(TORCH)' numpy
	touch $@

# The site, into docs/build/html; warnings are errors. The tutorials show their stored
# outputs; `make docs NOTEBOOKS=force` runs them instead, which takes minutes.
docs: .venv/docs
	JAX_PLATFORMS=cpu $(BIN)/python -m sphinx -q -W --keep-going -b html \
	  -D nb_execution_mode=$(NOTEBOOKS) docs docs/build/html

# The pictures of docs/figures; give DATA_DIR, which holds mnist/, and RUNS.
figures: .venv
	$(BIN)/python -m experiments.gallery --data_dir=$(DATA_DIR) --runs=$(RUNS)

# The page of trained models, into explorer/dist; needs node 20 and npm.
explorer: explorer/node_modules
	cd explorer && npm run --silent build

explorer-serve: explorer
	$(PYTHON) -m http.server 8000 --bind 127.0.0.1 --directory explorer/dist

explorer/node_modules: explorer/package.json explorer/package-lock.json
	cd explorer && npm ci --ignore-scripts
	touch $@

lint: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Annotations of `kernels` and `capjax`, and the calls of the binaries. A checkout
# finds `kernels` at run time, which mypy does not see, so it is given the packages
# as a wheel has them.
TYPES := build/types

types: .venv
	rm -rf $(TYPES) && mkdir -p $(TYPES)
	cp -R capjax $(TYPES)
	rm $(TYPES)/capjax/kernels.py $(TYPES)/capjax/experiments.py
	cp -R kernels experiments $(TYPES)/capjax
	cd $(TYPES) && $(abspath $(BIN))/python -m mypy \
	  --config-file $(abspath setup.cfg) --cache-dir $(abspath build/mypy) -p capjax

# Rebuilt when the requirements change; a failed installation leaves no stamp.
.venv: .venv/installed
.venv/installed: setup.cfg setup.py pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "capjax needs Python >= 3.11; give one as PYTHON=python3.x")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[train,data,dev]' \
	  $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
	touch $@

# Beside .venv, whose packages it sees: jax2onnx asks for an older Orbax, and
# works with ours, so neither it nor its requirements may choose versions.
ONNX := .venv-onnx/bin/python
.venv-onnx: .venv-onnx/installed
.venv-onnx/installed: .venv/installed
	rm -rf .venv-onnx
	$(BIN)/python -m venv --without-pip .venv-onnx
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" \
	  % sysconfig.get_path("purelib"))' \
	  > $$($(ONNX) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	$(BIN)/python -m pip --python $(ONNX) install --quiet --no-deps \
	  jax2onnx==0.17.1 'onnx>=1.20.1,<2' 'onnx-ir>=0.2.1,<2' 'onnxruntime>=1.24.1,<2' \
	  'equinox>=0.13.1,<0.14' 'sympy>=1.13,<2' 'mpmath>=1.3,<2' 'dm-pix>=0.4.4,<0.5'
	$(ONNX) -c 'import jax2onnx, onnxruntime'
	touch $@

# The CUDA libraries that compile for a GPU.
.venv-cuda: .venv-cuda/installed
.venv-cuda/installed: .venv/installed
	$(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/python -m pip install --quiet --editable '.[train,cuda13]' \
	  $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
	touch $@

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[train,docs]'
	touch $@

include results/records.mk

clean:
	rm -rf .venv .venv-onnx .venv-torch .venv-cuda runs docs/build explorer/dist explorer/node_modules
