"""Contract of publishers: the tests of a home subclass `PublisherContract` and build its tables.

Flags, with the reason beside them, mark what the format of a home cannot do.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from capture.connectors import open_connector
from capture.connectors.spi import Connector, ConnectorConfig
from capture.homes import HOMES
from capture.publishers.publishing import publish, withdraw
from capture.publishers.spi import ColumnStatistics, Destination, LostRace, Publisher, TableStatistics
from store.model import sketches
from store.model.errors import Conflict, InvalidArgument
from store.model.sketches.murmur3 import hash_longs

APPENDS = 8


@dataclass
class Table:
    """A table in a lake, its connector, and the rows it was built from."""

    home: str
    config: ConnectorConfig
    namespace: str
    name: str
    path: Path
    rows: pa.Table
    options: Mapping[str, str] = field(default_factory=dict)
    spark: Any = None

    @property
    def connector(self) -> Connector:
        return open_connector(self.config)

    def statistics(self, snapshot_id: int | None = None, **changed: Any) -> TableStatistics:
        """True statistics of the rows, for the current snapshot unless another is given."""
        connector = self.connector
        current = connector.enumerate_snapshots(self.namespace, self.name).current_snapshot_id
        schema = connector.describe(self.namespace, self.name).schema
        assert current is not None
        columns = tuple(
            _column(self.rows.column(column.name), column.field_id or number, column.name, column.logical_type)
            for number, column in enumerate(schema.columns, 1)
            if column.name in self.rows.column_names and column.is_leaf
        )
        given = {"columns": columns, "row_count": self.rows.num_rows, "total_size_bytes": 4000} | changed
        return TableStatistics(self.namespace, self.name, current if snapshot_id is None else snapshot_id, **given)

    def publisher(self, statistics: TableStatistics | None = None) -> Publisher:
        destination = Destination(self.connector, self.config, self.options, self.spark)
        return HOMES.load(self.home)(destination, statistics or self.statistics())

    def files(self) -> dict[str, bytes]:
        return {str(f.relative_to(self.path)): f.read_bytes() for f in sorted(self.path.rglob("*")) if f.is_file()}


def _column(values: pa.ChunkedArray, column_id: int, name: str, logical_type: str) -> ColumnStatistics:
    known = values.drop_null()
    whole = pa.types.is_integer(values.type)
    low, high = (pc.min_max(known)[side].as_py() if whole else None for side in ("min", "max"))
    distinct = pc.unique(known)
    sketch = sketches.ThetaBuilder()
    sketch.update(hash_longs((distinct.cast(pa.int64()) if whole else pa.array(range(len(distinct)))).to_numpy()))
    return ColumnStatistics(
        column_id,
        name,
        logical_type,
        len(values),
        values.null_count,
        None,
        float(len(pc.unique(known))),
        *(None if side is None else str(side) for side in (low, high)),
        *([True if whole else None] * 2),
        8.0,
        8,
        theta=sketch.serialize(),
    )


def rows(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    labels = [None if i % 5 == 0 else f"l{i % 9}" for i in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "label": pa.array(labels, pa.string())})


LABELS = st.sampled_from(["INHERITED", "EXACT"])
CLAIMS = st.fixed_dictionaries(
    {
        "freshness": LABELS,
        "usable_for": st.sampled_from(["PLANNING", "PRUNING"]),
        "distribution_freshness": LABELS,
        "min_is_exact": st.sampled_from([None, False, True]),
        "max_is_exact": st.sampled_from([None, False, True]),
    },
    optional={"theta": st.none(), "ndv": st.just(7.0)},
)
"""What may be said of a column's statistics; the least sure first, since what is published may stay."""


def read_back(table: Table) -> list[dict[str, Any]]:
    """Rows of COLUMN_SCHEMA that a capture takes from the table's own statistics as those of its current snapshot."""
    now = table.statistics()
    ids = {column.name: column.column_id for column in now.columns}
    native = table.connector.capture_snapshot_target_stats(table.namespace, table.name, now.snapshot_id, ids)
    return [] if native.columns is None else native.columns.to_pylist()


def is_said(name: str, row: dict[str, Any], claims: Sequence[ColumnStatistics]) -> bool:
    """True if a count or bound that was read back is unknown, or that of published statistics which were as sure."""
    of_value = [claim for claim in claims if getattr(claim, name) == row[name]]
    sure = [claim for claim in of_value if (claim.freshness, claim.usable_for) == ("EXACT", "PRUNING")]
    is_exact = f"{name}_is_exact"
    return row[name] is None or any(not row.get(is_exact) or getattr(claim, is_exact) for claim in sure)


def known_columns(*facts: tuple[str, str, str | None, str | None]) -> tuple[ColumnStatistics, ...]:
    """Statistics of columns by name, type and bounds, which are values of theirs; ids count from 1."""
    return tuple(
        ColumnStatistics(
            number,
            name,
            type,
            row_count=150,
            null_count=7,
            ndv=5.0,
            min=low,
            max=high,
            min_is_exact=True,
            max_is_exact=True,
            avg_width_bytes=2.5,
            max_width_bytes=9,
        )
        for number, (name, type, low, high) in enumerate(facts, 1)
    )


class PublisherContract(ABC):
    """Contract suite of homes.

    Attributes:
        takes_older: A snapshot that is not the newest may be published: the home keeps statistics by snapshot.
        appends: A library appends to such tables.
        reads_counts: The home's numbers of distinct values can be read back.
        takes_counts: The home takes a column without its number of distinct values.
    """

    takes_older = False
    reads_counts = True
    takes_counts = True
    appends = True

    @abstractmethod
    def build(self, root: Path) -> Table:
        """A table of `rows(0, 150)`."""

    @abstractmethod
    def append(self, table: Table, more: pa.Table) -> None:
        """Appends rows with the format's own writer."""

    @abstractmethod
    def count(self, table: Table) -> int:
        """Rows of the table, as the format's own reader counts them."""

    @pytest.fixture
    def table(self, tmp_path: Path) -> Table:
        return self.build(tmp_path)

    def test_published_statistics_are_read_back(self, table: Table):
        statistics = table.statistics()
        result = publish(table.publisher(statistics))
        assert (result.state, result.to, result.columns) == ("CURRENT", table.home, ("id", "label"))
        read = table.publisher(statistics).read()
        assert read is not None and read.snapshot_id in (None, result.snapshot_id) and read.location == result.location
        expected = {"id": 150, "label": 9}
        assert read.distinct == (expected if self.reads_counts else dict.fromkeys(expected))
        assert self.count(table) == 150

    def test_a_dry_run_writes_nothing(self, table: Table):
        before = table.files()
        result = publish(table.publisher(), dry_run=True)
        assert (result.state, result.columns) == ("DRY_RUN", ("id", "label"))
        assert table.files() == before and table.publisher().read() is None

    def test_publishing_twice_adds_no_file(self, table: Table):
        statistics = table.statistics()
        publish(table.publisher(statistics))
        before = table.files()
        assert publish(table.publisher(statistics)).state == "CURRENT"
        assert table.files().keys() == before.keys()

    def test_newer_statistics_replace_older_ones(self, table: Table):
        statistics = table.statistics()
        publish(table.publisher(statistics))
        first, second = statistics.columns
        fewer = replace(first, ndv=3.0, theta=second.theta)
        result = publish(table.publisher(table.statistics(statistics.snapshot_id, columns=(fewer,))))
        assert result.columns == ("id",)
        read = table.publisher(statistics).read()
        assert read is not None and read.distinct.get("id") == (3 if self.reads_counts else None)

    def test_statistics_of_an_older_snapshot_are_refused_unless_supported(self, table: Table):
        statistics = table.statistics()
        if self.appends:
            self.append(table, rows(150, 160))
        before = table.files()
        if self.takes_older:
            assert publish(table.publisher(statistics)).snapshot_id == statistics.snapshot_id
            return
        with pytest.raises(Conflict, match="moved on"):
            publish(table.publisher(statistics))
        assert table.files() == before

    def test_lost_race_is_retried_with_fresh_state(self, table: Table):
        publisher = table.publisher()
        prepared, write, pauses = [], publisher.write, []
        prepare = publisher.prepare
        publisher.prepare = lambda: prepared.append(1) or prepare()
        publisher.write = lambda draft: _lose() if len(prepared) < 3 else write(draft)
        assert publish(publisher, pause=pauses.append).state == "CURRENT"
        assert len(prepared) == 3 and len(pauses) == 2 and all(pause > 0 for pause in pauses)

    def test_publish_gives_up_after_the_last_attempt(self, table: Table):
        publisher = table.publisher()
        publisher.write = lambda draft: _lose()
        before = table.files()
        with pytest.raises(LostRace, match="gave up after 8 attempts"):
            publish(publisher, pause=lambda _: None)
        assert table.files() == before

    def test_publish_succeeds_beside_another_publication(self, table: Table):
        statistics = table.statistics()
        publisher, write, others = table.publisher(statistics), None, []
        write = publisher.write

        def interrupted(draft: Any) -> int | None:
            if not others:
                others.append(publish(table.publisher(statistics)))
            return write(draft)

        publisher.write = interrupted
        assert publish(publisher, pause=lambda _: None).state == "CURRENT"
        read = table.publisher(statistics).read()
        assert read is not None and set(read.distinct) == {"id", "label"} and self.count(table) == 150

    def test_withdrawn_statistics_are_removed(self, table: Table):
        statistics = table.statistics()
        assert not withdraw(table.publisher(statistics))
        publish(table.publisher(statistics))
        assert withdraw(table.publisher(_bare(statistics)))
        assert table.publisher(statistics).read() is None and self.count(table) == 150

    def test_withdrawal_that_loses_a_race_is_retried(self, table: Table):
        publish(table.publisher())
        publisher, lost = table.publisher(), []
        removed = publisher.withdraw
        publisher.withdraw = lambda: removed() if len(lost) == 2 else lost.append(1) or _lose()
        assert withdraw(publisher, pause=lambda _: None) and table.publisher().read() is None
        publisher.withdraw = _lose
        with pytest.raises(LostRace, match="gave up after 8 attempts"):
            withdraw(publisher, pause=lambda _: None)

    def test_concurrent_appends_are_not_lost(self, table: Table):
        if not self.appends:
            return
        statistics, errors = table.statistics(), []

        def appending() -> None:
            try:
                for number in range(APPENDS):
                    self.append(table, rows(1000 + number * 10, 1010 + number * 10))
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=appending)
        thread.start()
        done = 0
        while thread.is_alive():
            try:
                now = table.statistics()
                publish(table.publisher(now), pause=lambda _: None)
                done += 1
            except (Conflict, LostRace):
                continue
        thread.join()
        assert not errors
        assert self.count(table) == 150 + 10 * APPENDS
        assert publish(table.publisher(table.statistics())).state == "CURRENT"
        assert statistics.snapshot_id != table.statistics().snapshot_id

    def test_an_inherited_distribution_is_published_only_with_leave(self, table: Table):
        home = HOMES.load(table.home)
        statistics = table.statistics()
        at = statistics.snapshot_id
        old = {"distribution_snapshot_id": at, "distribution_freshness": "INHERITED"}
        first, second = statistics.columns
        some = table.statistics(at, columns=(replace(first, **old), second))
        every = table.statistics(at, columns=tuple(replace(column, **old) for column in statistics.columns))
        before = table.files()
        if not home.reads_data:
            with pytest.raises(InvalidArgument, match=rf"INHERITED: of snapshot {at}.*allow_inherited") as refused:
                publish(table.publisher(every))
            assert refused.value.code == "NOT_PUBLISHABLE"
        mixed = publish(table.publisher(some), dry_run=True)
        assert set(mixed.columns) == ({"id", "label"} if home.reads_data else {"label"})
        assert table.files() == before
        with_leave = table.publisher(replace(every, allow_inherited=True))
        if home.labels is None or home.labels.sketch_snapshot:
            result = publish(with_leave)
            assert set(result.columns) == {"id", "label"}
            assert (f"inherited: id, label of snapshot {at}" in result.detail) == (not home.reads_data)
        elif self.takes_counts:
            result = publish(with_leave)
            assert f"without distinct values of snapshot {at}: id, label" in result.detail
            read = table.publisher().read()
            assert read is not None and read.distinct == {"id": None, "label": None}
        else:
            with pytest.raises(InvalidArgument, match=f"{table.home} can store none of the columns"):
                publish(with_leave)

    def test_old_counts_are_never_published_without_leave(self, table: Table):
        statistics = table.statistics()
        at = statistics.snapshot_id
        first, second = statistics.columns
        columns = (replace(first, freshness="INHERITED", snapshot_id=at), replace(second, freshness="STALE"))
        old = table.statistics(at, columns=columns)
        with pytest.raises(InvalidArgument, match="may be published"):
            table.publisher(old)
        with_leave = replace(old, allow_inherited=True)
        labels = HOMES.load(table.home).labels
        said = with_leave.columns[0] if labels is None else labels.sayable(with_leave.columns[0])[0]
        assert labels is None or {said.row_count, said.null_count, said.min, said.max} == {None}
        assert "STALE" in table.publisher(with_leave).statistics.left_out["label"]

    def test_nothing_is_surer_in_the_home_than_it_was(self, table: Table):
        """What the home and its reader say of the current snapshot is no more than what was handed to the publisher."""
        older = 1  # no snapshot of the table
        if self.appends:
            older = table.statistics().snapshot_id
            self.append(table, rows(150, 160))
            table.rows = rows(0, 160)
        home = HOMES.load(table.home)

        said: dict[str, list[ColumnStatistics]] = {"id": [], "label": []}

        @settings(max_examples=8, deadline=None, database=None, phases=[Phase.generate])
        @given(claims=st.tuples(CLAIMS, CLAIMS), leave=st.booleans())
        def check(claims: Any, leave: bool) -> None:
            true = table.statistics()
            columns = []
            number = len(said["id"]) + 1
            for column, claim in zip(true.columns, claims, strict=True):
                sides = {"min": str(-number), "max": str(1000 + number)} if column.min is not None else {}
                of = {"distribution_snapshot_id": older} if claim["distribution_freshness"] != "EXACT" else {}
                columns.append(replace(column, **claim, **of, **sides, null_count=number))
                said[column.name].append(columns[-1])
            with suppress(InvalidArgument):  # there is nothing that the home can say
                publish(table.publisher(replace(true, columns=tuple(columns), allow_inherited=leave)))
            held = table.publisher().read()
            is_tagged = home.labels is not None and home.labels.sketch_snapshot
            for name, distinct in (held.distinct if held is not None else {}).items():
                current = any(claim.distribution_freshness == "EXACT" for claim in said[name])
                assert distinct is None or is_tagged or current, name
            for row in read_back(table):
                name = row["column_name"]
                current = any(claim.distribution_freshness == "EXACT" for claim in said[name])
                assert row["ndv"] is None or current or home.reads_data, (row, said[name])
                for count in ("null_count", "min", "max"):
                    assert is_said(count, row, said[name]), (count, row, said[name])

        check()

    def test_columns_left_out_keep_their_reason(self, table: Table):
        statistics = table.statistics(left_out={"other": "is of a sample"})
        result = publish(table.publisher(statistics))
        assert result.left_out["other"] == "is of a sample" and "other (is of a sample)" in result.detail

    def test_table_without_publishable_columns_is_refused(self, table: Table):
        before = table.files()
        with pytest.raises(InvalidArgument, match=table.home):
            publish(table.publisher(table.statistics(columns=())))
        assert table.files() == before

    def test_an_unknown_option_is_refused(self, table: Table):
        with pytest.raises(InvalidArgument, match=r"options\.color"):
            Table(**{**vars(table), "options": {"color": "red"}}).publisher()


def _bare(statistics: TableStatistics) -> TableStatistics:
    """Statistics with the names of the columns alone, as a withdrawal has them."""
    columns = tuple(ColumnStatistics(at, c.name, c.logical_type) for at, c in enumerate(statistics.columns))
    return TableStatistics(statistics.namespace, statistics.name, statistics.snapshot_id, columns)


def _lose() -> int:
    raise LostRace("another writer came first")
