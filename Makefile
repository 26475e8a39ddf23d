# demo, test, lint and bench each set up what they need: Python 3.11+ with pip is enough.
#
#   make demo [ENGINE=vllm] [ARGS="--rate 3"]   trace a real model under load and show where the time goes
#   make test [ARGS="tests/queries -k p99"]
#   make test-vllm [ARGS="-k disconnect"]   with a real vLLM: 4 GB of packages once, kept outside the checkout
#   make lint
#   make bench [ONLY=recorder]
#   make gpu-check                          on a CUDA GPU: what device and layer times cost, and how right they are
#   make soak [ARGS="-k kill"]              some minutes of kills, forks, clock steps and failures
#
# PYTHON=/path/to/python3.12 chooses the interpreter that .venv is made with.
# Paths below are relative, so that the checkout may lie in a folder whose name has a space.

VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV := .venv-vllm
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export HF_HUB_OFFLINE := 1

.DELETE_ON_ERROR:
.PHONY: help demo test test-vllm lint bench gpu-check soak clean

help:
	@sed -n '3,12s/^# \{0,3\}//p' Makefile

# vLLM has an environment of its own, the one of test-vllm. To use one that you have: tailspan demo --engine vllm
ifeq ($(ENGINE),vllm)
demo: $(VENV)/created
	$(BIN)/python tests/vllm/environment.py .
	$(VLLM_VENV)/bin/tailspan demo --engine vllm $(ARGS)
else
demo: $(VENV)/demo-installed
	$(BIN)/tailspan demo $(if $(ENGINE),--engine $(ENGINE) )$(ARGS)
endif

# tests/conftest.py says what stays together. In order of the folders, the last ones are short: both processes end alike.
test: $(VENV)/dev-installed
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# The packages are shared by all checkouts, tailspan in .venv-vllm is this checkout's: see tests/vllm/environment.py.
test-vllm: $(VENV)/created
	$(BIN)/python tests/vllm/environment.py .
	$(VLLM_VENV)/bin/python -m pytest tests/vllm $(ARGS)

lint: $(VENV)/dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/sqlfluff lint --nocolor --disable-progress-bar schemas queries collector

bench: $(VENV)/dev-installed
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY))

# On Linux, PyPI's torch is the one with CUDA. ARGS="--device cpu" tries the check itself.
gpu-check: $(VENV)/demo-installed
	$(BIN)/python -m benchmarks.gpu_check $(ARGS)

soak: $(VENV)/dev-installed
	$(BIN)/python -m pytest tests/soak -m soak $(ARGS)

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist .mypy_cache .pytest_cache .ruff_cache

# A second call finds the stamp and installs nothing; a change of pyproject.toml or constraints.txt installs again.
$(VENV)/demo-installed: pyproject.toml constraints.txt $(VENV)/created
	$(BIN)/python -m pip install --quiet --progress-bar on -c constraints.txt -e '.[demo]'
	@touch $@

# `dev` contains `demo`.
$(VENV)/dev-installed: pyproject.toml constraints.txt $(VENV)/created
	$(BIN)/python -m pip install --quiet --progress-bar on -c constraints.txt -e '.[dev]'
	@touch $(VENV)/demo-installed $@

# Some distributions split `ensurepip` off into a package of its own: pip then installs itself from outside.
$(VENV)/created:
	@for candidate in "$(PYTHON)" python3.13 python3.12 python3.11 python3 python; do \
	  if [ -n "$$candidate" ] && command -v "$$candidate" >/dev/null 2>&1 \
	    && "$$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "creating $(VENV) with $$("$$candidate" --version)"; \
	    rm -rf $(VENV); \
	    if "$$candidate" -c 'import ensurepip' >/dev/null 2>&1; then \
	      "$$candidate" -m venv $(VENV); \
	    else \
	      "$$candidate" -m venv --without-pip $(VENV) \
	        && "$$candidate" -m pip --python $(VENV)/bin/python install --quiet pip; \
	    fi && touch $@ && exit 0; \
	    echo "make: error: $$candidate could not create $(VENV). Install the venv module of this Python" \
	      "(Debian, Ubuntu: python3-venv), or name another one with PYTHON=" >&2; exit 2; \
	  fi; \
	done; \
	echo "make: error: no Python 3.11 or newer with the venv module was found." \
	  "Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 2
