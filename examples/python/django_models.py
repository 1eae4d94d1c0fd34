"""A Django model whose primary keys come from an idalloc sequence, in an app of one file.

pip install '.[django]'  # in a clone of idalloc
python django_models.py SERVER FILE COUNT
"""

import argparse

import django
from django.conf import settings
from django.db import connection, models

parser = argparse.ArgumentParser(description="Insert Django models with ids from idalloc.")
parser.add_argument("server", metavar="SERVER", help="HOST:PORT of the idalloc server")
parser.add_argument("file", metavar="FILE", help="the SQLite file with the table of orders, or the URL of a CrateDB")
parser.add_argument("count", metavar="COUNT", type=int, help="how many orders to insert")
arguments = parser.parse_args()

# In a project these lines are in settings.py.
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": arguments.file}
database |= {"OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20}}
if is_crate := "://" in arguments.file:  # pip install cratedb-django
    database = {"ENGINE": "cratedb_django", "SERVERS": [arguments.file], "OPTIONS": {}}
DEFAULT_AUTO_FIELD = "idalloc.ext.django.IdallocBigAutoField"
IDALLOC = {"server": arguments.server}
settings.configure(
    DEFAULT_AUTO_FIELD=DEFAULT_AUTO_FIELD,
    IDALLOC=IDALLOC,
    DATABASES={"default": database},
)
django.setup()
if is_crate:
    import cratedb_django.models  # noqa: F401  # before any other model


# In a project the rest is in models.py.
class Order(models.Model):
    customer = models.TextField()

    class Meta:
        app_label = "shop"
        db_table = "orders"


def main(count: int) -> None:
    with connection.schema_editor() as editor:  # in a project, a migration
        if Order._meta.db_table not in connection.introspection.table_names():
            editor.create_model(Order)
    orders = Order.objects.bulk_create([Order(customer=f"customer {n}") for n in range(count)], batch_size=1000)
    print(f"{len(orders)} orders")


if __name__ == "__main__":
    try:
        main(arguments.count)
    finally:
        connection.close()
