# make test: what CI runs. Everything runs from .venv, which is made from requirements.lock.

PYTHON ?= python3
BIN := .venv/bin

# What clones of one user share, as they do the jars of the Kafka tests.
SHARED := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/windrow
UV_VERSION := 0.13.8
UV := $(SHARED)/uv-$(UV_VERSION)

# Rooms of tests in five processes for two cores: Spark, brokers and kills are often waited for (tests/conftest.py).
PYTEST := $(BIN)/pytest -n 5 --dist loadscope --no-loadscope-reorder --durations 20 -rR

# The broker of the Kafka tests is theirs, in a container.
OWN_BROKER := $(if $(WINDROW_KAFKA)$(filter none,$(KAFKA)),,yes)

# Processes that keep no bytecode compile all they import anew, each of them.
export PYTHONDONTWRITEBYTECODE :=

# Spark's executors take the system's Python unless told otherwise.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.PHONY: help tools .venv demo page weather sessions lint ruff types layers compiled classes engine browser prometheus docker cluster test test-fast test-deep test-newest-spark bench features rules alerts pages docs format clean

help:
	@echo "make .venv    install the pinned environment"
	@echo "make demo     run examples/flights.py"
	@echo "make page     run examples/flights.py with its page"
	@echo "make weather  run examples/weather.py"
	@echo "make sessions run examples/aircraft.py"
	@echo "make features run examples/features.py"
	@echo "make rules    run examples/knock_on.py"
	@echo "make alerts   run examples/delay_alerts.py"
	@echo "make lint     ruff, mypy, import layers"
	@echo "make docker   a container engine and the image of the Kafka broker"
	@echo "make cluster  a job on Kafka and a Spark cluster in containers: JOB='python examples/...' KILL=worker-2"
	@echo "make test     lint, docker, then pytest"
	@echo "make test-fast  what starts neither Spark nor Kafka, without the searches of proof and simulation"
	@echo "make test-deep  test, with all that is left out for time: kills, seeds, examples, flights"
	@echo "make test-newest-spark  tests/spark with the newest PySpark that is allowed"
	@echo "make bench    run the benchmarks"
	@echo "make pages    write the pages that come from code and tests"
	@echo "make docs     build the site of docs/ into out/site; a link that leads nowhere is an error"
	@echo "make format   format the code and sort imports"
	@echo "make clean    remove caches, build output and written data (keeps .venv)"

tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "windrow needs Python 3.11 or newer; '$(PYTHON)' is missing or too old." >&2; \
	  echo "Install it (Debian, Ubuntu: apt install python3.11 python3.11-venv; macOS: brew install python@3.11)," >&2; \
	  echo "then run: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { \
	  echo "'$(PYTHON)' cannot make virtual environments." >&2; \
	  echo "Install its venv module (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@version=$$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	  [ "$${version:-0}" -ge 17 ] || { \
	  echo "Spark needs Java 17 or newer; found on PATH: $${version:-none}." >&2; \
	  echo "Install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17)" >&2; \
	  echo "and put its bin folder on PATH." >&2; exit 1; }

.venv: .venv/stamp

# The lock names all there is: nothing is resolved, only checked. Unpacked once for all clones of a user, files are linked into
# each; pip would unpack Spark anew for each, and does so where uv is not to be had, or does not find what pip is told where to
# find. Of thousands of modules some hundreds are ever imported, and compiled then.
.venv/stamp: requirements.lock pyproject.toml setup.py | tools $(UV)/bin/pip
	$(PYTHON) -m venv --without-pip .venv
	@with() { "$$@" install --quiet --no-deps -r requirements.lock && \
	  "$$@" install --quiet --no-deps --no-build-isolation -e . && "$$@" check --quiet; }; \
	  UV_PYTHON=$(BIN)/python with $(UV)/bin/uv pip || with $(UV)/bin/pip --python $(BIN)/python
	touch $@

$(UV)/bin/pip: | tools
	$(PYTHON) -m venv $(UV)
	-$(UV)/bin/pip install --quiet uv==$(UV_VERSION)

demo: .venv/stamp
	$(BIN)/python examples/flights.py

# The page follows the job, and stays when it has ended, until it is interrupted.
page: .venv/stamp
	@$(BIN)/windrow ui out/flights/checkpoint/windrow --port $(or $(PORT),8080) & page=$$!; trap "kill $$page" EXIT; \
	  $(BIN)/python examples/flights.py --fresh --every 10; wait $$page

weather: .venv/stamp
	$(BIN)/python examples/weather.py

sessions: .venv/stamp
	$(BIN)/python examples/aircraft.py

lint: types ruff layers

# What mypy has found out it looks up by what files hold: a fresh clone begins with what was found out in another.
types: .venv/stamp
	@[ -d .mypy_cache ] || tar -xf $(SHARED)/mypy.tar 2>/dev/null || true
	$(BIN)/mypy -p windrow
	@tar -cf $(SHARED)/mypy.tar.$$$$ .mypy_cache && mv $(SHARED)/mypy.tar.$$$$ $(SHARED)/mypy.tar

ruff: .venv/stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

layers: .venv/stamp
	$(BIN)/lint-imports

# Five processes would each compile all of a fresh clone. What is wrong, the tests will say.
compiled: .venv/stamp
	@$(BIN)/pytest --collect-only --quiet >/dev/null 2>&1 || true

# Once for all clones of a user.
classes: .venv/stamp
	@$(BIN)/python -m tests.spark.classes

engine:
	@docker/engine.sh

# For the tests of metrics.
prometheus:
	@docker/observe/prometheus.sh

# What the tests of the page need: Chromium and axe-core.
browser:
	@docker/browser.sh

docker: engine
	@image=$$(docker/kafka-image.sh) && echo "Kafka broker: $$image"

# All of docker/compose.yaml until the job has ended, as the job has.
cluster: .venv/stamp
	@docker/cluster.sh

# WINDROW_KAFKA=host:port takes a broker that runs, KAFKA=none leaves the Kafka tests out. Where the broker's image is built, other
# tests run meanwhile; those of Kafka wait for it (docker/kafka-image.sh).
test:
	@[ -z "$(filter none,$(KAFKA))" ] || [ "$$CI" != true ] || { \
	  echo "KAFKA=none is for people: CI runs the Kafka tests." >&2; exit 1; }
	@$(if $(OWN_BROKER),$(MAKE) --no-print-directory docker & image=$$!;) \
	  $(MAKE) --no-print-directory --jobs 3 $(if $(OWN_BROKER),engine) browser prometheus compiled classes lint && \
	  $(PYTEST) $(if $(filter none,$(KAFKA)),-m "not kafka"); ended=$$?; \
	  $(if $(OWN_BROKER),wait $$image || exit $$?;) exit $$ended

test-deep: export WINDROW_DEEP := 1
test-deep: test

test-fast: .venv/stamp
	$(PYTEST) -m "not spark and not kafka and not slow" --ignore=tests/proof --ignore=tests/simulation

# Under the newest PySpark that pyproject.toml allows, in an environment of its own: the lock has an older one.
NEWEST_SPARK := 4.3.0
NEWEST := out/spark-$(NEWEST_SPARK)

test-newest-spark: export PYSPARK_PYTHON := $(CURDIR)/$(NEWEST)/bin/python
test-newest-spark: $(NEWEST)/stamp
	PATH=$(CURDIR)/$(NEWEST)/bin:$$PATH $(NEWEST)/bin/pytest -n 2 -p no:cacheprovider tests/spark

$(NEWEST)/stamp: requirements.lock | tools $(UV)/bin/pip
	$(PYTHON) -m venv --without-pip $(NEWEST)
	sed 's/^pyspark==.*/pyspark==$(NEWEST_SPARK)/' requirements.lock >$(NEWEST)/requirements.lock
	UV_PYTHON=$(NEWEST)/bin/python $(UV)/bin/uv pip install --quiet --no-deps -r $(NEWEST)/requirements.lock
	UV_PYTHON=$(NEWEST)/bin/python $(UV)/bin/uv pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

bench: .venv/stamp
	$(BIN)/python -m benchmarks

features: .venv/stamp
	$(BIN)/python examples/features.py

rules: .venv/stamp
	$(BIN)/python examples/knock_on.py

alerts: .venv/stamp
	$(BIN)/python examples/delay_alerts.py

pages: .venv/stamp
	$(BIN)/python -m tests.docs.pages

# The link to the repository is that of the clone's origin, where that is a site.
docs: out/docs-env/stamp
	url=$$(git config --get remote.origin.url | sed -E 's#^git@([^:]+):#https://\1/#; s#\.git$$##' | grep '^https://'); \
	sed "s|^# repo_url: .*|$${url:+repo_url = \"$$url\"}|" zensical.toml > zensical.out.toml; \
	out/docs-env/bin/zensical build --strict --clean -f zensical.out.toml; code=$$?; rm -f zensical.out.toml; exit $$code

out/docs-env/stamp: requirements-docs.lock
	$(PYTHON) -m venv out/docs-env
	out/docs-env/bin/pip install --quiet -r requirements-docs.lock
	touch $@

format: .venv/stamp
	$(BIN)/ruff check --fix-only --select I .
	$(BIN)/ruff format .

clean:
	rm -rf build dist out ckpt spark-warehouse metastore_db derby.log htmlcov .coverage
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
