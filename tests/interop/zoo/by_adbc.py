"""Asks by the Flight SQL driver of ADBC in Python: `by_adbc.py ADDRESS`, questions on standard input."""

from __future__ import annotations

import json
import sys

from adbc_driver_flightsql import dbapi

TYPES = {"text": str, "int": int, "double": float}


def main(address: str) -> None:
    with dbapi.connect(address, autocommit=True) as connection:
        for line in sys.stdin:
            name, sql, *given = line.rstrip("\n").split("\t")
            parts = (parameter.partition(":") for parameter in given)
            parameters = [TYPES[kind](value) for kind, _, value in parts]
            try:
                with connection.cursor() as cursor:
                    cursor.execute(sql, parameters or None)
                    answer: dict[str, object] = {"rows": cursor.fetchall()}
            except dbapi.Error as error:
                answer = {"error": str(error)}
            sys.stdout.write(json.dumps({"name": name, **answer}, default=str) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
