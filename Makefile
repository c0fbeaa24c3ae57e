# Everything from nothing: each target makes .venv, installs by pip, builds the extension, then runs.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
PY := $(VENV)/bin/python
CSRC := $(wildcard torch_tinygrad/csrc/*/*.cpp torch_tinygrad/csrc/*/*.h)
MINUTES ?= 60
WORKERS ?= 2

VERSIONS ?= 2.11 2.12 2.13 2.14 2.15

.PHONY: all demo test test-long quick accuracy tinygrad-next test-devices ecosystem ecosystem-table torch-versions wheel render lint fuzz faults sanitize conformance gallery bench bench-gpu clean help

all: build

help:
	@echo "make demo         train a small CNN on cpu and on tiny, side by side"
	@echo "make test         lint and the whole test suite"
	@echo "                  WORKERS=2 processes, ARGS for pytest"
	@echo "make test-long    the same with fifteen times as many random programs"
	@echo "make quick        for whoever edits a lowering: a tenth of it, in about two minutes"
	@echo "make test-devices the suite on whatever of OpenCL, WebGPU, PYTHON and LLVM is here; DEVICES='CL WEBGPU'"
	@echo "make ecosystem    other people's libraries on the device, in an environment of their own; ARGS='-k llama'"
	@echo "make torch-versions   built and smoke-tested with each torch, in environments that go again; VERSIONS='2.14 2.15'"
	@echo "make tinygrad-next    the suite against another tinygrad, and what broke; TINYGRAD=0.15.0 or a checkout, ARGS='tests/operators'"
	@echo "make wheel        a wheel in dist/, smoke-tested in an environment that has nothing else"
	@echo "make render       code for AMD, METAL, CUDA and QCOM without the hardware"
	@echo "make fuzz         random programs on both devices; MINUTES=60, ARGS=--sizes for sizes that vary, --training for networks"
	@echo "make faults       faults injected into random programs, bad and empty calls: a table of what they cost; MINUTES=60"
	@echo "make sanitize     the extension built with AddressSanitizer and UBSan, and with ThreadSanitizer, under its tests"
	@echo "make accuracy     every function of floats beside mpmath, direct and compiled; ARGS='erfc lgamma --count 1000'"
	@echo "make conformance  PyTorch's operator database on both devices; ARGS='--op add --dtype float32'"
	@echo "make gallery      pictures of what the programs in examples/ compute, into docs/gallery/"
	@echo "make bench        side-by-side benchmarks; ARGS='--only matmul'"
	@echo "make bench-gpu    the same on a GPU, beside eager CUDA and TinyJit; DEV=CUDA"
	@echo "make clean        remove what was built"

$(VENV)/deps: pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q $(TORCH) tinygrad==0.14.0 numpy setuptools wheel ninja pytest pytest-xdist hypothesis expecttest scipy ruff mypy==2.4.1 clang-format==23.1.3
	command -v clang >/dev/null || $(PY) -m pip install -q ziglang
	touch $@

$(VENV)/built: $(VENV)/deps setup.py $(CSRC)
	$(PY) -m pip install -q --no-build-isolation --no-deps -e .
	touch $@

build: $(VENV)/built

demo: build
	$(PY) examples/demo.py $(ARGS)

render: build
	$(PY) -m tests.render $(ARGS)

lint: build
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run --Werror $(CSRC)

# What other devices give is said when all is done: they wait for their compilers while the suite runs.
test: lint
	$(PY) -m tests.devices --selection > $(VENV)/selection.txt 2>&1 & selection=$$!; \
	$(PY) -m pytest tests -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS); passed=$$?; \
	wait $$selection || passed=1; cat $(VENV)/selection.txt; exit $$passed

# Random programs are searched for longer.
test-long: export TORCH_TINY_FUZZ_PROGRAMS = 300
test-long: test

quick: build
	$(PY) -m pytest -q -x tests/project/test_rooms.py tests/operators/test_operators.py tests/aliasing/test_views.py tests/aliasing/test_setitem.py tests/service/test_direct.py $(ARGS)

test-devices: build
	$(PY) -m tests.devices $(DEVICES) $(if $(ARGS),-- $(ARGS))

# The libraries lie over .venv in an environment of their own, which keeps its torch. A torchvision that was built for
# another torch than that (with CUDA, for the CPU's) does without its compiled operators: ecosystem/conftest.py.
ECOSYSTEM := $(VENV)/ecosystem
$(ECOSYSTEM)/deps: $(VENV)/deps Makefile
	test -x $(ECOSYSTEM)/bin/python || $(PY) -m venv $(ECOSYSTEM)
	$(PY) -c "import sysconfig; print(sysconfig.get_paths()['purelib'])" > $(ECOSYSTEM)/base.txt
	cp $(ECOSYSTEM)/base.txt `$(ECOSYSTEM)/bin/python -c "import sysconfig; print(sysconfig.get_paths()['purelib'])"`/base.pth
	$(PY) -c "import torch; print('torch==' + torch.__version__.partition('+')[0])" > $(ECOSYSTEM)/constraints.txt
	$(ECOSYSTEM)/bin/python -m pip install -q -c $(ECOSYSTEM)/constraints.txt transformers accelerate safetensors torchvision timm peft torchmetrics lightning diffusers kornia torch-geometric
	touch $@

ecosystem: build $(ECOSYSTEM)/deps
	$(ECOSYSTEM)/bin/python -m pytest ecosystem $(ARGS)

# What PyTorch itself has for accelerators, and other people's libraries: the page that says what works.
OF_THE_TABLE := tests/service/test_bare_systems.py tests/project/test_report.py tests/project/test_snippets.py
ecosystem-table: build $(ECOSYSTEM)/deps
	$(ECOSYSTEM)/bin/python -m pytest -p ecosystem.table ecosystem tests/pytorch $(OF_THE_TABLE) --table docs/ecosystem.md

# tinygrad alone is another: everything else is that of .venv.
TINYGRAD ?= 0.14.0
tinygrad-next: build
	$(PY) -m tests.tinygrad_next $(TINYGRAD) --folder $(VENV)/tinygrad-next $(ARGS)

# PyTorch's wheels bring several GB of CUDA's libraries, and import without a GPU: an environment at a time, which goes again.
torch-versions:
	for version in $(VERSIONS); do $(PYTHON) -m tests.installed --torch $$version --folder $(VENV)/torch-versions || exit 1; done

wheel:
	$(PYTHON) -m tests.installed --folder $(VENV)/wheel --torch $(patsubst torch==%,%,$(TORCH)) --keep dist

fuzz: build
	$(PY) -m tests.fuzz --minutes $(MINUTES) $(ARGS)

faults: build
	$(PY) -m tests.faults --minutes $(MINUTES)
	$(PY) -m tests.empties
	$(PY) -m tests.bad_calls --minutes $(MINUTES)
	$(PY) -m tests.bad_calls --minutes $(MINUTES) --large

sanitize: build
	$(PY) -m tests.sanitize $(ARGS)

accuracy: build
	$(PY) -m tests.accuracy $(ARGS)

conformance: build
	$(PY) -m torch_tinygrad.conformance $(ARGS)

gallery: build
	$(PY) examples/gallery.py

bench: build
	$(PY) -m bench $(ARGS)

bench-gpu: build
	DEV=$(or $(DEV),CUDA) $(PY) -m bench.gpu $(ARGS)

clean:
	rm -rf build dist $(VENV) torch_tinygrad/*.so *.egg-info
