# make demo | test | test-fast OP=softmax | browser-test | lint | gpu-test | wheel | matrix | clean. Each
# sets up what it needs in .venv; VENV=0 uses the Python in PATH as it is, without network (a machine
# that has torch already).

VENV ?= .venv
PYTHON ?= python3
OUT ?= out/demo
DEV := lab,jax,dev

# Kernels for the GPUs that are here; without one for Hopper, so that they are at least compiled.
GPU_ARCHS := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u | paste -sd';')
export FUSELINE_CUDA_ARCHS ?= $(or $(GPU_ARCHS),90)

NATIVE := CMakeLists.txt $(wildcard cmake/*.cmake) pyproject.toml $(shell find src -name '*.c*' -path '*impl_*' -o -name '*.cu*' -o -name '*.h*' -path '*src*' -o -path '*core/*.cpp')

ifeq ($(VENV),0)
  STAMP := build/.make
  BIN :=
  PY := $(PYTHON)
else
  STAMP := $(VENV)/.make
  BIN := $(CURDIR)/$(VENV)/bin/
  PY := $(BIN)python
endif
export PATH := $(BIN:%/=%):$(PATH)
# Hundreds of processes that tests start would each compile our modules, and pytest its own.
unexport PYTHONDONTWRITEBYTECODE
# pip hides what CMake says.
SAY_WHAT_IS_MISSING = $(PY) -c "from fuseline.core import native; why = native.status().why_not('cuda'); why and print(why)"

.PHONY: demo test test-fast browser-test lint gpu-test wheel matrix clean

demo: $(STAMP)/lab
	$(PY) -m fuselab check rms_norm --level quick
	$(PY) -m fuselab run rms_norm --suite quick --out $(OUT)
	$(PY) -m fuselab report $(OUT)

# These two would suffer from a process beside them. The others' threads do not spin while they wait:
# those of several processes on two processors would take five times as long. Three processes, since
# one mostly waits for a child or a time to be up. Files come by name: by their number of tests, the
# few long ones would come last, with one processor at work.
ALONE := tests/lab/test_caches.py tests/checker/test_cheats.py

test: $(STAMP)/dev
	OMP_WAIT_POLICY=passive $(PY) -m pytest -m "not gpu and not browser and not long" -n 3 --dist loadfile \
	  --no-loadscope-reorder $(ALONE:%=--ignore=%)
	$(PY) -m pytest -m "not gpu and not browser and not long" $(ALONE)

# What a change near one operator (or several: OP="softmax or rms_norm") needs, in three minutes.
OP ?= rms_norm
test-fast: $(STAMP)/dev
	OMP_WAIT_POLICY=passive $(PY) -m pytest -m "not gpu and not browser and not long and not slow" -n 2 \
	  tests/architecture tests/ops tests/cuda_on_cpu -k "architecture or $(OP)"

# The report in a real Chromium, which must be in PATH.
browser-test: $(STAMP)/dev
	$(PY) -m pytest -m browser tests/lab/test_page.py

gpu-test: $(STAMP)/dev
	$(PY) -c "import sys, torch; torch.cuda.is_available() or sys.exit('gpu-test: torch sees no GPU')"
	$(PY) -m pytest -m gpu

lint: $(STAMP)/dev
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	git ls-files '*.cpp' '*.cu' '*.cuh' '*.h' | xargs clang-format --dry-run -Werror
	$(PY) -m mypy
	lint-imports

wheel: $(STAMP)/lab
	FUSELINE_CUDA_ARCHS=$(WHEEL_ARCHS) $(PY) -m pip wheel --no-build-isolation --no-deps -w dist \
	  -C cmake.define.FUSELINE_HOST=OFF .

# One wheel, with kernels for the GPUs that are here, in each version of torch: TORCH="2.11 newest"
# and TESTS=tests/ops/test_rope.py take fewer, JOBS=4 runs so many versions at a time. REPORT names a
# file for the table.
matrix: WHEEL_ARCHS = $(FUSELINE_CUDA_ARCHS)
matrix: wheel
	$(PY) tools/matrix.py --wheel "$$(ls -t dist/fuseline-*.whl | head -1)" \
	  $(if $(TORCH),--torch $(TORCH)) $(if $(JOBS),--jobs $(JOBS)) \
	  $(if $(REPORT),--report $(REPORT)) -- $(TESTS)

clean:
	rm -rf build dist out compile_commands.json $(filter-out 0,$(VENV))

ifeq ($(VENV),0)
$(STAMP)/lab $(STAMP)/dev: $(NATIVE)
	$(PY) -m pip install -q --no-build-isolation --no-deps --no-index -e .
	@$(SAY_WHAT_IS_MISSING)
	@mkdir -p $(STAMP) && touch $(STAMP)/lab $(STAMP)/dev
else
$(PY):
	$(PYTHON) -m venv $(VENV)

$(STAMP)/build: $(PY) constraints.txt
	$(PY) -m pip install -q -c constraints.txt torch scikit-build-core cmake ninja
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/lab $(STAMP)/dev: $(STAMP)/%: $(STAMP)/build $(NATIVE)
	$(PY) -m pip install -q -c constraints.txt --no-build-isolation -C cmake.define.FUSELINE_HOST=ON \
	  -e '.[$(if $(filter dev,$*),$(DEV),lab)]'
	@$(SAY_WHAT_IS_MISSING)
	@touch $@
endif
