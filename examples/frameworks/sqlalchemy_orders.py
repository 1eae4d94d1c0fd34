"""Inserts rows of a stock SQLAlchemy model: nothing in it knows idalloc, but the URL may name it.

python sqlalchemy_orders.py 'sqlite:///orders.db?plugin=idalloc' COUNT
"""

import argparse

from sqlalchemy import BigInteger, create_engine, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

parser = argparse.ArgumentParser(description="Insert rows of a SQLAlchemy model.")
parser.add_argument("database", metavar="DATABASE", help="the database's SQLAlchemy URL")
parser.add_argument("count", metavar="COUNT", type=int, help="how many orders to insert")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=True)
    customer: Mapped[str]


def main(database: str, count: int) -> None:
    engine = create_engine(database)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Order(customer=f"customer {n}") for n in range(count // 2)])
        session.execute(insert(Order), [{"customer": f"customer {n}"} for n in range(count - count // 2)])
        session.commit()
    print(f"{count} orders")


if __name__ == "__main__":
    main(**vars(parser.parse_args()))
