"""Commands that ask to plan a scan: what is taken, what is refused, and their tickets."""

import json

import pytest

from flight_server.planning.plan_request import PlanRequest, find
from store.model.errors import InvalidArgument
from store.model.predicates.tree import Leaf, Op

LEAF = {"column": "id", "op": "EQ", "values": [1]}


def found(**body):
    return find(json.dumps({"scan": "lake.s.t"} | body).encode())


def test_conditions_are_text_or_trees():
    for where in ("id = 1", LEAF, [LEAF]):
        assert found(where=where).node == Leaf("id", Op.EQ, (1,))
    assert found() == PlanRequest("lake.s.t")
    assert found(where=[]).node is None


def test_other_commands_are_not_scans():
    text = {"column": "table_name", "op": "EQ", "values": ["scan"]}
    for data in (None, b"", b"\x01", b'{"table": "scan"}', json.dumps({"table": "t", "predicates": [text]}).encode()):
        assert find(data) is None


def test_a_ticket_names_the_snapshot():
    request = found(where="id = 0.1000000000000000000001", columns=["id"], capture=True)
    ticket = find(request.ticket(7))
    assert (ticket.snapshot, ticket.node, ticket.columns, ticket.capture) == (7, request.node, ("id",), False)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"scan": 1}, "scan: is not a full table name"),
        ({"scan": "t"}, "scan: is not a full table name"),
        ({"where": 7}, "where: is not a condition"),
        ({"where": "id ="}, "where: cannot be read"),
        ({"where": "lower(a) = 'b'"}, "function"),
        ({"where": {"xor": []}}, "where: unknown key"),
        ({"columns": "id"}, "columns: must be a list"),
        ({"snapshot": "last"}, "snapshot: is not a snapshot"),
        ({"capture": 1}, "capture: must be true or false"),
        ({"wher": "id = 1"}, 'no key "wher"; did you mean "where"'),
        ({"version": 2}, "version: is unknown"),
        ({"where": "a = '" + "x" * 70_000 + "'"}, "longer than 65536 bytes"),
    ],
)
def test_mistakes_are_refused(body, message):
    with pytest.raises(InvalidArgument) as refusal:
        found(**body)
    assert message in str(refusal.value)
