"""Run by MySQL's own client's Python: inserts documents without ids, and tells the ids that the server made.

A line of JSON on standard input, {"offset": …, "increment": …, "prefix": …, "count": …}, is answered by one on output.
"""

import json
import sys

import mysqlx  # type: ignore[import-not-found]

session = mysqlx.get_session(
    {"host": "127.0.0.1", "port": int(sys.argv[1]), "user": "root", "password": "", "ssl-mode": "DISABLED"}
)
documents = session.create_schema("idalloc").create_collection("documents")
for line in sys.stdin:
    wanted = json.loads(line)
    for variable, value in (
        ("SESSION auto_increment_offset", wanted["offset"]),
        ("SESSION auto_increment_increment", wanted["increment"]),
        ("GLOBAL mysqlx_document_id_unique_prefix", wanted["prefix"]),
    ):
        session.sql(f"SET {variable} = {value:d}").execute()
    result = documents.add(*({"n": n} for n in range(wanted["count"]))).execute()
    print(json.dumps(result.get_generated_ids()), flush=True)
session.close()
