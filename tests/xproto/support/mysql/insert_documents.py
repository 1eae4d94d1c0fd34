"""Inserts documents with MySQL's client in Python, and prints the server's ids.

Each line of standard input, {"offset": …, "increment": …, "prefix": …, "count": …}, is answered by
one line of JSON.
"""

import json
import sys

import mysqlx

session = mysqlx.get_session(
    {"host": "127.0.0.1", "port": int(sys.argv[1]), "user": "root", "password": "", "ssl-mode": "DISABLED"}
)
documents = session.create_schema("idalloc").create_collection("documents")
for line in sys.stdin:
    request = json.loads(line)
    for variable, value in (
        ("SESSION auto_increment_offset", request["offset"]),
        ("SESSION auto_increment_increment", request["increment"]),
        ("GLOBAL mysqlx_document_id_unique_prefix", request["prefix"]),
    ):
        session.sql(f"SET {variable} = {value:d}").execute()
    result = documents.add(*({"n": n} for n in range(request["count"]))).execute()
    print(json.dumps(result.get_generated_ids()), flush=True)
session.close()
