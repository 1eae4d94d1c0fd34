"""SQLAlchemy models whose primary keys come from idalloc sequences, for any database.

    pip install '.[sqlalchemy]' sqlalchemy-cratedb  # in a clone of idalloc
    python sqlalchemy_models.py [LINES]

Needs an idalloc server and a database. IDALLOC_SERVER is the server (default 127.0.0.1:50051);
IDALLOC_CA and IDALLOC_TOKEN_FILE are the CA and the token, if the server needs them; DATABASE is
the database's SQLAlchemy URL (default crate://crate@127.0.0.1:4200).
"""

import argparse
import os
import sys
import time

from sqlalchemy import BigInteger, Engine, create_engine, insert
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import idalloc
from idalloc.ext.sqlalchemy import idalloc_default

ATTEMPTS = 5

# Each is a function that returns the next id. No id is allocated before the first row.
next_order = idalloc_default("example_shop_orders")
next_line = idalloc_default("example_shop_lines")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "example_shop_orders"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, default=next_order)
    customer: Mapped[str]


class Line(Base):
    __tablename__ = "example_shop_lines"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, default=next_line)
    order_id: Mapped[int] = mapped_column(BigInteger)  # no ForeignKey, which CrateDB does not have
    what: Mapped[str]


def save_once(engine: Engine, customer: str, whats: list[str]) -> int:
    """Save an order with its lines: one INSERT for each table. Return its id."""
    with Session(engine) as session, session.begin():
        order = Order(customer=customer)
        session.add(order)
        session.flush()  # sets order.id
        session.execute(insert(Line), [{"order_id": order.id, "what": what} for what in whats])
        return order.id


def save_with_retries(engine: Engine, customer: str, whats: list[str]) -> int:
    """Save an order, and repeat that if the connection is lost. No row is written twice.

    The ids are allocated before the first attempt. So a repeat finds what an earlier attempt has
    committed, also if the reply to its COMMIT was lost.
    """
    order_id = next_order()
    lines = [{"id": next_line(), "order_id": order_id, "what": what} for what in whats]
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with Session(engine) as session, session.begin():
                if session.get(Order, order_id) is None:
                    session.execute(insert(Line), lines)
                    # The order comes last: without transactions, as in CrateDB, it exists only
                    # after its lines.
                    session.add(Order(id=order_id, customer=customer))
            break
        except OperationalError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(0.1 * 2**attempt)
    return order_id


def main(line_count: int) -> None:
    engine = create_engine(os.environ.get("DATABASE", "crate://crate@127.0.0.1:4200"))
    Base.metadata.create_all(engine)
    whats = [f"thing {number}" for number in range(1, line_count + 1)]
    for save in (save_once, save_with_retries):
        print(f"order {save(engine, 'Example Ltd', whats)} with {line_count} lines", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Insert SQLAlchemy models with ids from idalloc.")
    parser.add_argument("line_count", metavar="LINES", type=int, nargs="?", default=1000, help="1 or more")
    line_count = parser.parse_args().line_count
    if line_count < 1:
        parser.error("LINES must be at least 1")
    try:
        main(line_count)
    except (idalloc.IdallocError, ValueError) as error:  # ValueError: an invalid environment variable
        sys.exit(f"idalloc: {error}")
    except SQLAlchemyError as error:  # also an IdallocError in a column's default, which SQLAlchemy wraps
        sys.exit(str(error).partition("\n")[0])
