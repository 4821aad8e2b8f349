# Everything runs in .venv, made from requirements.lock by whichever Python 3.11+ is found first.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
# Processes that share the tests, of which most wait for something; 0: pytest's own alone.
WORKERS ?= 3

.PHONY: help install sparks test spark smoke demo lint types format crash soak hostile bench lock clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 10

install: .venv/.installed  ## make .venv and install exact versions into it

.venv/.installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or later is needed; set PYTHON=/path/to/it" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m tamis warm --quiet
	@touch $@

# The other versions of PySpark that are supported. The environment of one shares all else with .venv.
SPARKS := 4.1 4.3
SPARK_BINS := $(SPARKS:%=.venv-spark-%/bin/python)
SITE = -c 'import site; print(site.getsitepackages()[0])'

.venv-spark-%/bin/python: requirements-spark-%.lock .venv/.installed
	$(BIN)/python -m venv .venv-spark-$*
	$@ -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" > "$$($@ $(SITE))/shared.pth"
	@printf '#!%s\nfrom tamis.cli.main import main\n\nmain()\n' "$(CURDIR)/$@" > $(@D)/tamis && chmod +x $(@D)/tamis
	@touch $@

sparks: $(SPARK_BINS)  ## make an environment for each other version of PySpark that is supported

test: install  ## run the tests
	@$(BIN)/python -m pytest -n $(WORKERS)

spark: install sparks  ## all tests of Spark, with each version: also a cluster, Connect, Apache's brokers, real sinks
	@for python in $(SPARK_BINS) $(BIN)/python; do $$python -c 'import pyspark; print("PySpark", pyspark.__version__)'; \
		TAMIS_INTEROP=required TAMIS_THOROUGH=1 $$python -m pytest tests/spark tests/pipeline tests/sinks || exit; done

smoke: sparks  ## a few tests of Spark with the other versions that are supported
	@for python in $(SPARK_BINS); do $$python -c 'import pyspark; print("PySpark", pyspark.__version__)'; \
		TAMIS_INTEROP=required $$python -m pytest -q -m smoke tests/spark tests/pipeline || exit; done

demo: install  ## a broker, orders, groups that filter them; CLIENT=java, cpp or tamis
	@$(BIN)/python examples/orders/run.py $(if $(CLIENT),--client $(CLIENT))

lint: install  ## style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install  ## mypy --strict
	$(BIN)/mypy

format: install  ## put the format right
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

# How many disasters `make crash` has.
CRASHES ?= 1000

crash: install  ## a thousand disasters on a store, each followed by recovery, and every system call failing in turn
	TAMIS_CRASHES=$(CRASHES) TAMIS_KILLS=20 $(BIN)/python -m pytest tests/store/test_crashes.py tests/store/test_faults.py

soak: install  ## ten minutes of producers, filtered consumers, members that come and go
	$(BIN)/python benchmarks/soak.py

hostile: install  ## every attack on a broker, and what a well-behaved client beside it notices
	$(BIN)/python benchmarks/hostile.py

bench: install  ## measure; filter engines, broker, client and Spark beside others (needs Java, Maven)
	$(BIN)/python benchmarks/bench_filter.py
	$(BIN)/python benchmarks/bench_store.py
	$(BIN)/python benchmarks/bench_broker.py
	$(BIN)/python benchmarks/bench_client.py
	$(BIN)/python benchmarks/bench_code_filter.py
	$(BIN)/python benchmarks/bench_fate.py
	$(BIN)/python benchmarks/bench_spark.py

lock:  ## choose versions anew; needs uv
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra spark --group dev --generate-hashes \
		--no-emit-index-url --custom-compile-command "make lock" pyproject.toml -o requirements.lock
	for version in $(SPARKS); do echo "pyspark==$$version.*" | uv pip compile --quiet --upgrade --no-deps --universal \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
		--custom-compile-command "make lock" - -o requirements-spark-$$version.lock || exit; done

clean:  ## remove what make made
	rm -rf .venv .venv-spark-* tests/interop/target tests/interop/sinks/target tests/interop/yarn/target benchmarks/kafka/target
