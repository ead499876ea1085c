"""Tables of records as callers put them, and the check of a refusal."""

import pyarrow as pa
import pytest

from store.history.validation import prepare
from store.model.bounds import ZonePolicy
from store.model.errors import InvalidArgument
from store.model.schemas import FLIGHTS

KEY = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
FILES = FLIGHTS["stats.files"]
HASH = "0" * 64


def rows(name, *given, **common):
    """A table of the flight's own types with only the columns that the rows have."""
    given = [KEY | common | row for row in given]
    fields = [field for field in FLIGHTS[name].schema if any(field.name in row for row in given)]
    assert {column for row in given for column in row} == {field.name for field in fields}
    return pa.Table.from_pylist(given, pa.schema(fields))


def put(name, *given, policy=None, first_row=0, **common):
    table = prepare(FLIGHTS[name], rows(name, *given, **common), policy or ZonePolicy(), first_row=first_row)
    table.validate(full=True)
    return table.to_pylist()


def refused(*mentions, call=None, where=""):
    with pytest.raises(InvalidArgument) as refusal:
        call()
    message = str(refusal.value)
    assert all(str(word) in message for word in mentions), message
    assert where in message
