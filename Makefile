# Every target makes what it needs first, in .venv of this folder; `make help` lists them.
# Needs: make, Python 3.11 or newer with venv; a C compiler if there is one (the kernel is optional).

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.made-by-make
PEERS := .venv-bench
STAMP_OF_PEERS := $(PEERS)/.made-by-make
OLDEST := .venv-oldest
STAMP_OF_OLDEST := $(OLDEST)/.made-by-make
MUTANTS := .venv-mutants
STAMP_OF_MUTANTS := $(MUTANTS)/.made-by-make
DIST := .venv-dist
STAMP_OF_DIST := $(DIST)/.made-by-make
# Five processes on two cores, too: tests wait for a third of their time, and each collects all tests.
PYTEST := $(BIN)/python -m pytest -q -n 5 --dist loadfile --no-loadscope-reorder
# Without AVX: what a fresh clone meets on another machine, as far as this one can show it.
OLD_PROCESSOR := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41
PACKAGES := . $(patsubst %/pyproject.toml,%,$(wildcard models/pyproject.toml plugins/*/pyproject.toml))
SOURCES_OF_ENV := constraints.txt setup.py $(wildcard seqdata/kernel/*.[ch]) \
	$(patsubst %,%/pyproject.toml,$(PACKAGES))
GROUPS_OF_TOOLS := "import tomllib; g = tomllib.load(open('pyproject.toml', 'rb'))['dependency-groups']; \
	print(*g['dev'], *g['docs'])"
GROUP_OF_DIST := "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['dependency-groups']['dist'])"

# Nothing from outside the environment is seen. Only what installs is pinned (relative paths: a
# constraint's path may hold no blank), what builds a package too. Bytecode is kept: without it each
# of the tests' processes compiles pytest's plugins, the tests and the library again.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export PYTHONNOUSERSITE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
$(STAMP) $(STAMP_OF_DIST) dist: export PIP_CONSTRAINT := constraints.txt
$(STAMP) $(STAMP_OF_DIST) dist: export PIP_BUILD_CONSTRAINT := constraints.txt

.DEFAULT_GOAL := help
.PHONY: help env demo quick test test-loaded test-nightly reliability lint types ruff layers docs golden bench bench-quick torture faults mutants house dist clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

env: $(STAMP)  ## make the environment in .venv (another Python: make env PYTHON=python3.12)

$(STAMP): $(SOURCES_OF_ENV)
	@command -v $(PYTHON) > /dev/null || \
		{ echo "make env: no program '$(PYTHON)'; install Python 3.11 or newer, or: make env PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make env: '$(PYTHON)' is $$($(PYTHON) --version 2>&1), must be 3.11 or newer; try: make env PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || echo "== environment: making .venv with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
		{ rm -rf .venv; echo "make env: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "== environment: installing PyTorch (the largest part: minutes on a slow line)"
	@$(BIN)/python -m pip install -q --no-compile torch
	@echo "== environment: installing $(PACKAGES) editable, and the tools"
	@$(BIN)/python -m pip install -q --no-compile $(foreach package,$(PACKAGES),-e $(package)) $$($(BIN)/python -c $(GROUPS_OF_TOOLS))
	@$(BIN)/python -c 'import seqdata.kernel._fill' 2> /dev/null \
		&& echo "== environment: the C kernel is built" \
		|| echo "== environment: no C kernel (no compiler?); the NumPy twin does the same, slower"
	@touch $@

demo: env  ## the main job on real input: write, plan, train, stop, go on, prove it (5 minutes)
	@echo "== demo: examples/first_run.py, on the source files of Python itself"
	@$(BIN)/python examples/first_run.py

quick: env  ## the tests that take less than a second each (2 minutes); before you push: make test
	@echo "== quick: pytest, without what is marked slow, distributed or nightly"
	@$(PYTEST) -m "not nightly and not slow and not distributed"

test: env  ## all tests but the nightly ones
	@echo "== test: pytest, without what is marked nightly"
	@$(PYTEST) -m "not nightly"
	@echo "== test: tests/recurrent once more, with the kernels of an old processor"
	@$(OLD_PROCESSOR) $(BIN)/python -m pytest -q -m "not nightly and not slow" tests/recurrent \
		--ignore=tests/recurrent/test_wrapped_modules.py

test-loaded: env  ## what make test runs, five times beside four busy loops (2 hours; NIGHTLY=--again goes on)
	@echo "== test-loaded: five runs of pytest; reports go to .nightly/"
	@$(BIN)/python -m tests.nightly.run $(NIGHTLY) $(addprefix loaded-,1 2 3 4 5)

test-nightly: env $(STAMP_OF_OLDEST)  ## all tests at full counts, and the oldest Lightning (hours; NIGHTLY=--again goes on)
	@echo "== test-nightly: five runs of pytest; reports go to .nightly/"
	@$(BIN)/python -m tests.nightly.run $(NIGHTLY)

$(STAMP_OF_OLDEST): pyproject.toml constraints.txt tests/nightly/oldest.py | $(STAMP)
	@echo "== environment: making $(OLDEST), with the oldest Lightning and lower bounds of the rest (minutes)"
	@test -x $(OLDEST)/bin/python || $(BIN)/python -m venv $(OLDEST)
	@$(BIN)/python tests/nightly/oldest.py > $(OLDEST)/constraints.txt
	@PIP_CONSTRAINT=$(OLDEST)/constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(OLDEST)/bin/python -m pip install -q \
		$(foreach package,$(PACKAGES),-e $(package)) crc32c hypothesis matplotlib pandas polars pytest pytest-reportlog pytest-timeout pytest-xdist
	@touch $@

reliability:  ## write docs/about/reliability.md from what test-nightly and mutants found (RELIABILITY=--loaded: test-loaded)
	@echo "== reliability: docs/about/reliability.md, from .nightly/"
	@$(BIN)/python -m tests.nightly.figures $(RELIABILITY)

lint: env  ## ruff, mypy and the layer contracts, side by side
	@$(MAKE) --no-print-directory --silent --jobs=2 --old-file=env types ruff layers

types: env  ## mypy --strict
	@echo "== types: mypy"
	@$(BIN)/mypy

ruff: env
	@echo "== lint: ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== lint: style"
	@$(BIN)/python .ci/style.py
	@echo "== lint: names"
	@$(BIN)/python .ci/names.py

layers: env
	@echo "== lint: layers"
	@$(BIN)/lint-imports --no-logo

docs: env  ## run the examples of all pages, then build the site in site/, check and look at it
	@echo "== docs: running every block of code on every page"
	@$(BIN)/python -m pytest -q tests/test_docs.py
	@echo "== docs: building site/; warnings are errors, and the gallery runs"
	@$(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees -b html docs site
	@echo "== docs: every link within it leads somewhere, nothing is loaded from elsewhere"
	@$(BIN)/python docs/check_site.py site
	@echo "== docs: pictures of pages in build/screenshots"
	@$(BIN)/python docs/screenshots.py site build/screenshots

golden: env  ## write tests/public_api.txt and docs/llms.txt again, after a change of names or pages that is meant
	@$(BIN)/python -m tests.golden

bench: $(STAMP_OF_PEERS)  ## seqdata beside other loaders; writes docs/benchmarks (20 minutes)
	@echo "== bench: benchmarks/bench.py, every loader in a process of its own"
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore $(PEERS)/bin/python benchmarks/bench.py $(BENCH)

bench-quick:  ## the same with small data, in bench-quick/ (3 minutes)
	@$(MAKE) --no-print-directory bench BENCH="--quick $(BENCH)"

$(STAMP_OF_PEERS): benchmarks/peers.txt $(SOURCES_OF_ENV) | $(STAMP)
	@test -x $(PEERS)/bin/python || echo "== environment: making $(PEERS), for the loaders that we are compared with"
	@test -x $(PEERS)/bin/python || $(BIN)/python -m venv $(PEERS)
	@echo "== environment: installing benchmarks/peers.txt in $(PEERS) (minutes), and seqdata without what is there"
	@$(PEERS)/bin/python -m pip install -q --no-deps -e .
	@$(PEERS)/bin/python -m pip install -q --no-deps -r benchmarks/peers.txt || \
		for package in $$(grep -v '^#' benchmarks/peers.txt); do \
			$(PEERS)/bin/python -m pip install -q --no-deps $$package || echo "== environment: left out: $$package"; done
	@touch $@

torture: env $(STAMP_OF_PEERS)  ## the same harm to the same data, here and in other libraries; writes the table of the docs (15 minutes)
	@echo "== torture: benchmarks/torture.py; nine columns, two at a time, every case in a process of its own"
	@$(BIN)/python benchmarks/torture.py --page docs/benchmarks/faults.md

faults: env  ## inject every fault there is and show what comes of it (40 minutes)
	@echo "== faults: damaged files, killed workers, writers and ranks, a full disk, broken networks; on Arrow and tar, here and remote"
	@$(BIN)/python -m seqdata_testing.faults --target seqdata_webdataset.faults:TAR

mutants: env $(if $(ROOM),$(STAMP_OF_MUTANTS))  ## plant each bug of tests/mutants/ and see that a test finds it (ROOM=planning: 40 drawn at random there)
ifdef ROOM
	@echo "== mutants: drawn at random in $(ROOM), on a copy of the tree"
	@$(BIN)/python -m tests.mutants.draw $(ROOM) $(DRAW)
else
	@echo "== mutants: one bug after the other on a copy of the tree"
	@$(BIN)/python -m tests.mutants.run --json .nightly/mutants.json
endif

$(STAMP_OF_MUTANTS): | $(STAMP)
	@echo "== environment: making $(MUTANTS), for cosmic-ray, which makes mutants"
	@test -x $(MUTANTS)/bin/python || $(BIN)/python -m venv $(MUTANTS)
	@$(MUTANTS)/bin/python -m pip install -q 'cosmic-ray>=8.4,<9'
	@touch $@

house: env  ## count what a newcomer meets: files on a batch's way, modules, words (HOUSE=--list names them)
	@$(BIN)/python .ci/house.py $(HOUSE)

dist: $(STAMP_OF_DIST)  ## build sdists and wheels in dist/, render READMEs, try the wheels in an environment of their own
	@echo "== dist: building sdists, and wheels from what these hold"
	@rm -rf dist $(patsubst %,%/build,$(PACKAGES))
	@$(DIST)/bin/python .ci/dist.py dist $(PACKAGES)

$(STAMP_OF_DIST): pyproject.toml constraints.txt
	@test -x $(DIST)/bin/python || echo "== environment: making $(DIST), which builds packages"
	@test -x $(DIST)/bin/python || $(PYTHON) -m venv $(DIST)
	@$(DIST)/bin/python -m pip install -q $$($(DIST)/bin/python -c $(GROUP_OF_DIST))
	@touch $@

clean:  ## remove what was made, except environments (.venv, .venv-*)
	@echo "== clean: builds, caches and outputs; remove .venv by hand to start anew"
	@rm -rf build dist site docs/api/generated docs/examples/gallery docs/sg_execution_times.rst demo-output bench-quick lightning_logs .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	@rm -rf $(patsubst %,%/build,$(PACKAGES)) $(patsubst %,%/*.egg-info,$(PACKAGES)) seqdata/kernel/*.so $(STAMP)
	@find seqdata models plugins tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
