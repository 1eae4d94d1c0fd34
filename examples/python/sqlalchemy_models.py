"""Insert SQLAlchemy models into CrateDB; their ids come from an idalloc sequence.

    pip install 'idalloc[sqlalchemy]' sqlalchemy-cratedb
    python sqlalchemy_models.py [ROWS]

IDALLOC_SERVER is the idalloc server (127.0.0.1:50051); IDALLOC_TOKEN_FILE and IDALLOC_CA are the token and the CA, if
the server needs them; DATABASE is any database that SQLAlchemy supports (crate://crate@127.0.0.1:4200).
"""

import argparse
import os
import sys

from sqlalchemy import BigInteger, create_engine, insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from idalloc.ext.sqlalchemy import idalloc_default


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "idalloc_invoices"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, default=idalloc_default("idalloc_invoices"))
    what: Mapped[str]


def main(rows: int) -> None:
    engine = create_engine(os.environ.get("DATABASE", "crate://crate@127.0.0.1:4200"))
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        invoice = Invoice(what="single")
        session.add(invoice)
        session.flush()
        print(f"one row, id {invoice.id}")
        session.execute(insert(Invoice), [{"what": f"thing {n}"} for n in range(rows)])  # one INSERT
        session.commit()
        print(f"{rows} rows more")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", metavar="ROWS", type=int, nargs="?", default=1000)
    rows = parser.parse_args().rows
    if rows < 1:
        parser.error("ROWS must be at least 1")
    try:
        main(rows)
    except SQLAlchemyError as error:  # SQLAlchemy wraps an IdallocError, too.
        sys.exit(str(error).partition("\n")[0])
