"""How tables name snapshots and columns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flight_server.faces.iceberg_rest.tables import Served, url
from flight_server.planning.scan_columns import Columns
from store.model.errors import InvalidArgument
from store.model.logical_types import parse
from store.model.predicates.plain_conditions import Column

INT, TEXT = parse("INT"), parse("STRING")
STORED = Columns(
    SimpleNamespace(full_name="lake.s.t"),
    [(Column(1, "id", INT), ("id",)), (Column(2, "name", TEXT), ("name",)), (Column(3, "Name", TEXT), ("Name",))],
)  # the snapshot's; since then `id` and `name` swapped their names, and `new` came


def find(name: str, *, by_snapshot: bool = False, exact: bool = True, **ids: int) -> Column:
    ids = ids or {"name": 1, "id": 2, "Name": 3, "new": 4}
    return Served("", "", {}, columns=ids).finder(STORED, by_snapshot=by_snapshot, exact=exact)(name)


def test_names_are_those_of_the_current_schema_or_of_the_snapshot():
    assert find("name") == Column(1, "id", INT) and find("id") == Column(2, "name", TEXT)
    assert find("name", by_snapshot=True) == Column(2, "name", TEXT)
    assert find("ID", exact=False) == Column(2, "name", TEXT)


def test_what_the_snapshot_lacks_or_several_columns_are_called_has_no_type():
    assert find("new").type is None and find("new").id == 4
    assert find("NAME", exact=False).type is None
    assert find("NAME", by_snapshot=True, exact=False).type is None


@pytest.mark.parametrize("name", ["nosuch", "ID"])
def test_unknown_names_are_refused(name):
    with pytest.raises(InvalidArgument):
        find(name)
    with pytest.raises(InvalidArgument):
        find("nosuch", by_snapshot=True)


def test_snapshot_ids_of_made_up_metadata_are_one_higher():
    for is_made_up, shown in ((True, 1), (False, 0)):
        served = Served("", "", {}, is_made_up)
        assert served.shown(0) == shown and served.stored(shown) == 0


def test_paths_of_this_machine_are_urls():
    assert [url("/a b/c"), url("s3://bucket/a")] == ["file:///a b/c", "s3://bucket/a"]
