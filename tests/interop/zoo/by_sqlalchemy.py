"""Asks by SQLAlchemy, whose dialect is that of sqlalchemy-adbc: `by_sqlalchemy.py ADDRESS`.

Questions on standard input are run as they are; those of `by_reflection` are built from a table that is reflected.
"""

from __future__ import annotations

import json
import sys
import warnings

import sqlalchemy as sa

TYPES = {"text": str, "int": int, "double": float}


def by_reflection(engine: sa.Engine) -> dict[str, sa.Select]:
    """Name of a question → the same question by a reflected table."""
    columns = sa.Table("columns", sa.MetaData(), schema="stats", autoload_with=engine).c
    of_delta = columns.table_catalog == "delta"
    return {
        "distinct values": sa.select(columns.column_name, columns.ndv, columns.ndv_exact)
        .where(of_delta)
        .order_by(columns.column_id),
        "a page": sa.select(columns.column_name, columns.ndv)
        .where(of_delta)
        .order_by(columns.ndv.desc(), columns.column_name)
        .limit(3)
        .offset(1),
        "parameters": sa.select(columns.column_name)
        .where(columns.table_catalog == "parquet", columns.ndv > 5.0, columns.column_id <= 7)
        .order_by(columns.column_id)
        .limit(3),
        "groups": sa.select(columns.table_catalog, sa.func.count(), sa.func.sum(columns.null_count))
        .group_by(columns.table_catalog)
        .having(sa.func.sum(columns.ndv) > 10)
        .order_by(columns.table_catalog),
    }


def main(address: str) -> None:
    warnings.filterwarnings("ignore", "Cannot disable autocommit")
    engine = sa.create_engine(f"adbc+flightsql://{address.partition('://')[2]}?tls=false")
    inspector = sa.inspect(engine)
    assert {"stats", "sys"} <= set(inspector.get_schema_names()) and inspector.has_table("columns", schema="stats")
    reflected = by_reflection(engine)
    with engine.connect() as connection:
        for line in sys.stdin:
            name, sql, *given = line.rstrip("\n").split("\t")
            parts = (parameter.partition(":") for parameter in given)
            parameters = tuple(TYPES[kind](value) for kind, _, value in parts)
            try:
                rows = connection.exec_driver_sql(sql, parameters).fetchall()
                if name in reflected:
                    assert connection.execute(reflected[name]).fetchall() == rows, name
                answer: dict[str, object] = {"rows": [list(row) for row in rows]}
            except sa.exc.DBAPIError as error:
                answer = {"error": str(error.orig)}
            sys.stdout.write(json.dumps({"name": name, **answer}, default=str) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
