"""Add three documents, and print the ids that the server made."""

import os

import mysqlx

uri = os.environ.get("MYSQLX_URI", "mysqlx://shop:any@127.0.0.1:33060?ssl-mode=DISABLED")
session = mysqlx.get_session(uri)
schema = session.create_schema("shop")
orders = schema.create_collection("orders", reuse_existing=True)
added = orders.add({"what": "tea"}, {"what": "milk"}, {"what": "sugar"}).execute()
for doc_id in added.get_generated_ids():
    print(doc_id)
session.close()
