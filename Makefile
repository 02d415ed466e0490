# `make demo` and `make test` are all the set-up there is: each first brings .venv up to date.

PYTHON ?= python3
BIN := .venv/bin
NATIVE := $(wildcard src/structattn/kernels/native/*)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo test soak fuzz check format docs bench sanitize clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

setup: .venv/up-to-date ## install everything that is needed into .venv (nothing to do: nothing done)

# Debian without python3-venv has no ensurepip; pip can fill an environment from outside.
.venv/bin/python:
	$(PYTHON) -m venv .venv 2>/dev/null || \
	  { $(PYTHON) -m venv --without-pip .venv && $(PYTHON) -m pip --python .venv/bin/python install -q pip; }

# torch comes first and by its exact pin: any other request may bring gigabytes of CUDA.
# The editable install knows modules by name: when one comes, goes or moves, it is made anew.
MODULES := .venv/modules-$(shell find src -name '*.py' | sort | cksum | cut -d' ' -f1)

$(MODULES): .venv/bin/python
	@rm -f .venv/modules-*
	@touch $@

.venv/up-to-date: .venv/bin/python pyproject.toml constraints.txt CMakeLists.txt $(NATIVE) $(MODULES)
	@echo "setting up .venv (once, and again when its ingredients change)"
	$(BIN)/pip install -q -c constraints.txt torch==$$(sed -n 's/^torch==//p' constraints.txt) numpy
	$(BIN)/pip install -q -c constraints.txt scikit-build-core cmake ninja
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e ".[recipes,ray,test,check,docs]"
	@touch $@

demo: setup ## networks that learn to read formulas, their scores, and a picture of what they attend to (minutes)
	$(BIN)/structattn reproduce table1 --preset quick --folder runs/demo
	$(BIN)/structattn plot runs/demo/structured-seed1 --beside runs/demo/simple-seed1 --out runs/demo/parents.png
	$(BIN)/structattn plot runs/demo/structured-seed1 --arcs --out runs/demo/parents.svg

test: setup ## all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

soak: setup ## kernels in threads, killed trainings, several processes, over and over (an hour); the tests have short forms
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py

fuzz: setup ## 100,000 hostile inputs for everything that reads (a quarter of an hour); the tests have a short form
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py

check: setup docs ## style, types, C++ format, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror src/structattn/kernels/native/*.cpp src/structattn/kernels/native/*.h

format: setup ## put Python and C++ into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i src/structattn/kernels/native/*.cpp src/structattn/kernels/native/*.h

docs: setup ## the documentation, into docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

bench: setup ## speed against softmax and whatever peers are installed
	$(BIN)/structattn bench

# LEVEL: the instruction set, by default the machine's; the oldest one takes the least time to compile.
# A Python that was built without sanitizers has to load their run-time first, with libstdc++, some of which it replaces.
SANITIZED ?= tests/test_kernels.py tests/test_properties.py tests/test_laws.py tests/test_gradients.py \
  tests/test_numerics.py tests/test_concurrency.py

sanitize: setup ## tests of the kernels, built with the address and undefined-behaviour sanitizers
	@set -e; \
	level=$(or $(LEVEL),$$($(BIN)/python -c "from structattn.kernels import native; print(native.level())")); \
	build=build/sanitize-$$level; \
	$(BIN)/cmake -S . -B $$build -DSTRUCTATTN_SANITIZE=ON -DSTRUCTATTN_LEVELS=$$level > /dev/null; \
	$(BIN)/cmake --build $$build --parallel; \
	STRUCTATTN_NATIVE=$$build/_native.so ASAN_OPTIONS=detect_leaks=0 \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	$(BIN)/python -m pytest $(SANITIZED) -k "not compile and not registered"

clean: ## remove what is built, and .venv
	rm -rf .venv build docs/_build .pytest_cache .mypy_cache .ruff_cache
