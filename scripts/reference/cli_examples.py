"""An example of each command, and what its exit code says beyond that of all commands.

The examples run in the order of the page: a test runs them against a server.
"""

EXAMPLES = {
    "allocate": "idalloc allocate orders 3 --log issued.log",
    "stream": "idalloc stream orders --total 100000 --ranges",
    "docid": "idalloc docid 3",
    "uuid": "idalloc uuid 2 --version 4",
    "bench": "idalloc bench mixed --duration 1s --warm-up 0s --verify",
    "verify": "idalloc verify issued.log",
    "protos": "idalloc protos ./protos",
    "health": "idalloc health",
    "sequences list": "idalloc sequences list --prefix ord",
    "sequences create": "idalloc sequences create invoices --format 'INV-{year}-{value:06d}' --reset yearly",
    "sequences show": "idalloc sequences show invoices --json",
    "sequences update": "idalloc sequences update invoices --description 'one number for each invoice'",
    "sequences advance": "idalloc sequences advance invoices --past 700",
    "sequences delete": "idalloc sequences delete orders --no-wait",
    "sequences parse": "idalloc sequences parse invoices INV-2026-000702",
    "node show": "idalloc node show",
    "node set": "idalloc node set --prefix 7",
    "serve": "idalloc serve --listen 127.0.0.1:50052 --log-level warning",
    "config show": "idalloc config show --lease-ttl 5m",
    "store export": "idalloc store export >counters.jsonl",
    "store import": """idalloc store import counters.jsonl --store "sqlite://$PWD/other.db"
echo '{"_id": "parcels", "_source": {"value": 1041}}' >hits.jsonl
idalloc store import --from-elasticsearch hits.jsonl --store "sqlite://$PWD/other.db\"""",
    "store repair": 'idalloc store repair --store "sqlite://$PWD/other.db"',
    "token new": "idalloc token new billing --allocate 'invoices*' >billing.token 2>>access.toml",
    "witness show": 'idalloc witness show --witness "sqlite://$PWD/witness.db"',
    "witness forget": 'idalloc witness forget orders --witness "sqlite://$PWD/witness.db"',
}
EXIT_CODES = {
    "bench": "0 only if no call failed and `--verify` found nothing.",
    "verify": "0 only if nothing was found. 1 with a finding. 2 if a file cannot be read or is not a log.",
    "health": "0 only if the server answers SERVING.",
    "serve": "0 after SIGTERM or Ctrl-C. 1 if the store fails at startup or a worker was killed. 2 if a setting, a "
    "file or the store does not permit a start.",
    "store export": "1 also if the store has nothing to export.",
    "store import": "0 only if every line was imported.",
    "sequences advance": "With `--all` 1 also if a sequence was refused, or if the server has no witness.",
    "witness show": "1 also if servers refuse a sequence, since it is behind or missing in the store.",
    "witness forget": "1 also if a sequence has no mark.",
}
