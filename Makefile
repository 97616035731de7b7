# Requires Python >= 3.11, Java >= 17 and make. Each target installs its missing dependencies.
BIN := .venv/bin
JAR_SETS := delta local-fs kafka avro postgresql mariadb s3 azure gcs kafka-broker postgresql-server
export PIP_DISABLE_PIP_VERSION_CHECK := 1
CHAOS_KILLS := 100,50

.DEFAULT_GOAL := help
.PHONY: help demo cluster test test-matrix test-long chaos chaos-cluster chaos-sinks lint bench release jars docs ui clean distclean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1:/p' Makefile | awk -F: '{ printf "  make %-11s %s\n", $$1, $$2 }'

demo: jars  ## orders from a real Kafka broker to gold tables, with the dashboard; EVENTS=20000 to end after 20,000 orders, RATE=500 per second
	$(BIN)/penstock demo --ui $(if $(EVENTS),--events $(EVENTS)) $(if $(RATE),--rate $(RATE))

cluster: jars  ## the demo on a standalone Spark cluster of two workers; EVENTS and RATE as for the demo
	$(BIN)/penstock demo --cluster --ui $(if $(EVENTS),--events $(EVENTS)) $(if $(RATE),--rate $(RATE))

test: lint jars .venv-double/.installed .venv-double/.mariadb  ## all CI checks; ROOMS=kafka,cli for the tests that a change there affects, PYTEST_ARGS="-m 'not spark'" for a subset
	@ROOMS="$(ROOMS)" .ci/test $(PYTEST_ARGS)

test-matrix: jars  ## the core of the tests with Spark 4.1 and 4.2, and a table; SPARK=4.1 for one
	$(BIN)/python .ci/test-matrix $(SPARK)

test-long: jars .venv-double/.azurite .venv-double/.mariadb .venv-recipes/.installed  ## the tests marked long, more than 100,000 random CDC histories (HISTORIES per combination), 2,000 interrupted batches (CASES), many kills (KILLS)
	PENSTOCK_RANDOM_KILLS=$(or $(KILLS),30) PENSTOCK_TIME_KILLS=$(or $(KILLS),30) $(BIN)/python -m pytest -m long --timeout=7200 --durations 25 $(PYTEST_ARGS)
	PENSTOCK_DECISION_CASES=$(or $(CASES),2000) $(BIN)/python -m pytest tests/spark/test_batch_decisions.py --timeout=7200 $(PYTEST_ARGS)
	PENSTOCK_CDC_HISTORIES=$(or $(HISTORIES),15000) $(BIN)/python -m pytest tests/spark/test_cdc_properties.py --timeout=7200 $(PYTEST_ARGS)

chaos: jars  ## one sitting of kill -9 to the demo and auto CDC, two with one defence disabled, and the table of all sittings; KILLS=25, SEED to repeat
	PYTHONPATH=tests/spark:tests/s3 $(BIN)/python tests/chaos/sitting.py --kills $(or $(KILLS),25) $(if $(SEED),--seed $(SEED))
	PYTHONPATH=tests/spark:tests/s3 $(BIN)/python tests/chaos/sitting.py --kills 1 --without decision
	PYTHONPATH=tests/spark:tests/s3 $(BIN)/python tests/chaos/sitting.py --kills 1 --without fence
	PYTHONPATH=tests/spark:tests/s3 $(BIN)/python tests/chaos/sitting.py --table

chaos-cluster: jars .venv-double/.installed  ## one sitting of kill -9 to executors and driver of a cluster with two workers; KILLS=35, SEED to repeat, S3=1 for storage on S3
	PYTHONPATH=tests/spark:tests/s3 $(BIN)/python tests/chaos/sitting.py --cluster $(if $(S3),--s3) --kills $(or $(KILLS),35) $(if $(SEED),--seed $(SEED))
	PYTHONPATH=tests/spark:tests/s3 $(BIN)/python tests/chaos/sitting.py --table

chaos-sinks: jars .venv-double/.mariadb  ## kill -9 to a pipeline (100 times) and its server (50 times), with PostgreSQL and MariaDB; KILLS=10,5 for fewer, PENSTOCK_TEST_SEED to repeat
	PENSTOCK_SINK_KILLS=$(or $(KILLS),$(CHAOS_KILLS)) $(BIN)/python -m pytest tests/jdbc/test_sink_kills.py -s $(PYTEST_ARGS)

lint: .venv/.installed  ## style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.bench .venv-double/.installed jars  ## compare Penstock with plain Spark in interleaved runs; BENCH_ARGS for its options
	$(BIN)/python bench/run.py $(BENCH_ARGS)

release: .venv/.installed  ## build wheel and sdist in dist/, try each in an empty environment, write an SBOM; checks the changelog
	@.ci/release

docs: .venv/.installed  ## build the documentation as a site in build/docs; a broken link is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

ui:  ## build the pages of the dashboard into the package; requires Node 20.19 or newer
	cd ui && npm ci --no-fund --no-audit && npm run build

jars: .venv/.installed  ## download the jars of Spark and the broker into the shared cache
	@$(BIN)/penstock jars sync $(addprefix --set ,$(JAR_SETS))

clean:  ## remove the files that demo, tests and builds leave behind
	@if [ -x $(BIN)/penstock ] && [ -d demo/broker ]; then $(BIN)/penstock broker stop --dir demo/broker || true; fi
	@if [ -x $(BIN)/penstock ] && [ -d demo/cluster ]; then $(BIN)/penstock cluster stop --dir demo/cluster || true; fi
	rm -rf demo build dist ui/node_modules spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## also remove .venv, .venv-double, .venv-recipes, .venv-spark and .venv-release
	rm -rf .venv .venv-double .venv-recipes .venv-spark .venv-release

.venv/.installed: requirements/dev.txt pyproject.toml .ci/bootstrap
	@.ci/bootstrap requirements/dev.txt
	@touch $@

.venv-double/.installed: requirements/doubles.txt tests/kinesis/double/package-lock.json .ci/doubles .venv/.installed
	@.ci/doubles
	@touch $@

.venv-double/.azurite: tests/s3/azurite/package-lock.json .venv-double/.installed
	mkdir -p .venv-double/azurite
	cp tests/s3/azurite/package.json tests/s3/azurite/package-lock.json .venv-double/azurite/
	PATH="$(CURDIR)/.venv-double/bin:$$PATH" npm --prefix .venv-double/azurite ci --ignore-scripts --no-fund --no-audit --loglevel=error
	@touch $@

.venv-double/.mariadb: .ci/mariadb
	@.ci/mariadb
	@touch $@

.venv-recipes/.installed: $(wildcard requirements/recipes-*.txt) .ci/recipes .venv/.installed
	@.ci/recipes
	@touch $@

.venv/.bench: requirements/bench.txt .venv/.installed
	@.ci/bootstrap requirements/bench.txt
	@touch $@
