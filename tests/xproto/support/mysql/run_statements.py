"""Runs statements of MySQL's X DevAPI in Python; prints the number of each one's error.

python run_statements.py URI < statements.json
"""

import json
import sys

import mysqlx


def error_of(statement: str, names: dict[str, object]) -> int:
    """Return the number of the error that a statement ends with; 0 without an error."""
    try:
        made = eval(statement, names)
        if hasattr(made, "execute"):
            made.execute()
    except mysqlx.errors.Error as error:
        return int(error.errno)
    return 0


session = mysqlx.get_session(sys.argv[1])
schema = session.create_schema("shop")
orders = schema.create_collection("orders", reuse_existing=True)
orders.add({"_id": "first", "what": "tea", "price": 3}).execute()
names = {"mysqlx": mysqlx, "session": session, "schema": schema, "orders": orders}
print(json.dumps([error_of(statement, names) for statement in json.load(sys.stdin)]))
session.close()
