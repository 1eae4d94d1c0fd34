"""Which tests run the commands of a page, and which blocks no page test runs, with the reason."""

# The tests that run a page from its first block to its last.
WHOLE = {
    "README.md": "tests/e2e/test_readme.py",
    "docs/index.md": "tests/e2e/test_readme.py",
    "docs/tutorial.md": "tests/e2e/test_tutorial.py",
    "docs/guides/access-control.md": "tests/e2e/test_guides.py",
    "docs/guides/choosing-a-key.md": "tests/e2e/test_guides.py",
    "docs/guides/cratedb-auto-increment.md": "tests/e2e/test_sdk_guides.py",
    "docs/guides/deployment.md": "tests/e2e/test_guides.py",
    "docs/guides/envoy.md": "tests/e2e/test_guides.py",
    "docs/guides/formats-and-resets.md": "tests/e2e/test_sequence_guides.py",
    "docs/guides/languages.md": "tests/e2e/test_guides.py",
    "docs/guides/load-tests.md": "tests/e2e/test_guides.py",
    "docs/guides/migration.md": "tests/e2e/test_guides.py",
    "docs/guides/mysql-xdevapi.md": "tests/xproto/e2e/test_guides.py",
    "docs/guides/opensearch.md": "tests/e2e/test_opensearch_documents.py",
    "docs/guides/pandas.md": "tests/e2e/test_sdk_guides.py",
    "docs/guides/python-sdk.md": "tests/e2e/test_sdk_guides.py",
    "docs/guides/sequences.md": "tests/e2e/test_sequence_guides.py",
    "docs/guides/sqlalchemy.md": "tests/e2e/test_sdk_guides.py",
    "docs/guides/tls.md": "tests/e2e/test_guides.py",
    "docs/guides/verify.md": "tests/e2e/test_guides.py",
    "docs/operations/monitoring.md": "tests/e2e/test_guides.py",
    "docs/operations/tracing.md": "tests/e2e/test_guides.py",
    "docs/reference/cli.md": "tests/e2e/test_reference.py",
}
# The tests that run blocks of a page by the heading above them.
BY_HEADING = {
    "docs/operations/backup-and-restore.md": ("tests/e2e/test_backup_and_restore.py",),
    "docs/operations/runbook.md": ("tests/e2e/test_runbook.py", "tests/e2e/test_opensearch_documents.py"),
    "docs/operations/upgrades.md": ("tests/e2e/test_backup_and_restore.py",),
    "docs/operations/replace-move-clone.md": ("tests/e2e/test_replace_move_clone.py",),
}
FRAMEWORKS = "tests/languages/test_frameworks.py runs the program"
INDEX = "it needs a package index"
MYSQL_CLIENTS = "tests/xproto/languages/test_mysql_clients.py runs it"
NODE_CONSUMER = "tests/packages/test_node.py installs the package and runs it"
PROGRAMS = "tests/languages/test_programs.py runs the program"
PYTHON_EXAMPLES = "tests/e2e/test_examples.py runs the program"
OPENSEARCH = "tests/e2e/test_opensearch_documents.py runs it"
# By page and the beginning of the first line.
NOT_RUN = {
    "docs/index.md": {"git clone https://example.com/idalloc": "the address is a placeholder"},
    "docs/tutorial.md": {"python3 -m venv ~/idalloc-tutorial": INDEX},
    "docs/guides/cratedb-auto-increment.md": {"pip install '.[server,sqlalchemy]'": INDEX},
    "docs/guides/deployment.md": {
        "CREATE USER idalloc WITH (password = '…');": "it needs a CrateDB with users",
        "useradd --system --shell /usr/sbin/nologin idalloc": "it changes the system",
        "docker run ": "it needs a container engine; tests/e2e/test_image.py runs the image where there is one",
        "docker compose ": "it needs a container engine; tests/deploy/test_compose.py checks the file",
    },
    "docs/guides/envoy.md": {
        "envoy -c ": "it needs files in /etc; tests/deploy/test_envoy.py runs Envoy with them",
        "$ curl -s ": "it needs a socket in /run; tests/deploy/test_envoy.py waits for the same figure",
    },
    "docs/guides/languages.md": {
        "const file = readFileSync('protos/idalloc.binpb');": "tests/languages/test_languages_guide.py runs it",
        "<sourceDirectories>": "tests/languages/test_languages_guide.py builds with it",
        "$ cargo run": "it compiles for minutes; tests/languages/test_languages_guide.py runs it",
    },
    "docs/guides/go.md": {"": "tests/packages/test_go.py runs them with the client from a proxy on disk"},
    "docs/guides/frameworks.md": dict.fromkeys(
        ("DEFAULT_AUTO_FIELD = ", "class Order(", "@Entity('orders')", "for ; count > 0 ", "@IdGeneratorType("),
        "tests/languages/test_frameworks.py finds the lines in the program that it runs",
    ),
    "docs/guides/java.md": {"": "tests/packages/test_java_guide.py runs them with the built client"},
    "docs/guides/load-tests.md": {
        "ghz --config examples/ghz/allocate_range.json": (
            "its second server is of another machine; tests/e2e/test_ghz.py runs all configurations"
        ),
    },
    "docs/guides/migration.md": {
        "function set_counter": OPENSEARCH,
        "$ curl -sS -X PUT 127.0.0.1:9200/counters/_block/write": OPENSEARCH,
        '$ idalloc store import --store "sqlite://$PWD/ids.db" --from-elasticsearch opensearch://': OPENSEARCH,
        "$ idalloc allocate cartons 2": OPENSEARCH,
    },
    "docs/guides/mysql-xdevapi.md": {
        "python3 -m venv .venv-mysqlx": "the test has installed the same packages",
        "npm ci --prefix examples/mysql/node": MYSQL_CLIENTS,
        "mvn -q -B -f examples/mysql/java package": MYSQL_CLIENTS,
        "SELECT collection_key, ": "tests/xproto/store/test_document_rests.py runs it",
    },
    "docs/guides/node.md": dict.fromkeys(
        (
            "make packages-npm ",
            "idalloc serve ",
            "import ",
            "console.log(",
            "const ",
            "let ",
            "async function ",
            "orders.close",
        ),
        NODE_CONSUMER,
    ),
    "docs/guides/pandas.md": dict.fromkeys(
        ("$ python examples/frameworks/pandas_rows.py", "CREATE TABLE measurements", "from sqlalchemy_cratedb"),
        "it needs a CrateDB with DOUBLE PRECISION; tests/languages/test_frameworks.py runs the program on SQLite",
    ),
    "docs/guides/python-sdk.md": {"pip install .": INDEX},
    "docs/guides/sqlalchemy.md": {
        "pip install '.[server,sqlalchemy]'": INDEX,
        "pip install '.[sqlalchemy]' sqlalchemy-cratedb": INDEX,
    },
    "docs/operations/runbook.md": {
        "idalloc health": "under STORE_REFUSED: it needs a store that refuses; another block has the same command",
        "ss --tcp": "it needs the program ss and a flood of connections",
        "grep log_lines_lost": "it needs a log that stalls; tests/e2e/test_stalled_log.py makes the event",
        "grep request_ids_piling_up": "it needs millions of request ids",
        "grep change_failed": (
            "it needs a worker that cannot change; tests/unit/server/workers/test_worker.py makes the event"
        ),
    },
    "examples/frameworks/README.md": {"$ go run ": FRAMEWORKS, "$ python sqlalchemy_orders.py ": FRAMEWORKS},
    "examples/ghz/README.md": {"ghz --config ": "tests/e2e/test_ghz.py runs all configurations"},
    "examples/go/README.md": {"$ go run ": PROGRAMS},
    "examples/java/README.md": {"$ mvn ": PROGRAMS},
    "examples/mysql/README.md": {
        "idalloc serve --xproto-listen": MYSQL_CLIENTS,
        "$ python add.py": MYSQL_CLIENTS,
    },
    "examples/node/README.md": {"$ npm --prefix ../../client/node ci": PROGRAMS},
    "examples/python/README.md": {
        "$ python django_models.py ": FRAMEWORKS,
        "$ python insert_rows.py ": PYTHON_EXAMPLES,
        "idalloc sequences advance example_orders": "tests/e2e/test_sequence_guides.py runs the same of another table",
        "$ uvicorn invoice_service:app ": PYTHON_EXAMPLES,
        "$ DATABASE=sqlite:///shop.db ": PYTHON_EXAMPLES,
        "$ python six_ways.py ": PROGRAMS,
    },
    "docs/operations/tracing.md": {"pip install '.[server,otel]'": INDEX},
}
