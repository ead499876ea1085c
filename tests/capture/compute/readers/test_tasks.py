"""Scan tasks: only live rows, leaves of structs, constants, samples, and files that cannot be read."""

import datetime as dt
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.compute.file_scan import Work, from_batch, scan, to_batch
from capture.compute.partial import SketchSelection
from capture.compute.readers import parquet, tasks
from capture.connectors.rows import column_values
from capture.connectors.spi import EqualityDelete, ScanColumn, ScanTask
from store.model import sketches
from store.model.errors import UpstreamError

ZIPS = [None if i == 5 else f"z{i}" for i in range(10)]
ROWS = pa.table(
    {
        "id": pa.array(range(10), pa.int32()),
        "name": ["a", None, "b", "a", "c", "c", None, "d", "e", "f"],
        "place": pa.array(
            [None if i == 4 else {"lat": i / 2, "at": {"zip": ZIPS[i]}} for i in range(10)],
            pa.struct({"lat": pa.float64(), "at": pa.struct({"zip": pa.string()})}),
        ),
        "dotted.name": pa.array(range(10, 20)),
    }
)
COLUMNS = (
    ScanColumn(1, "id", "INT", "id"),
    ScanColumn(2, "name", "STRING", "name"),
    ScanColumn(3, "place.lat", "DOUBLE", "place.lat"),
    ScanColumn(4, "place.at.zip", "STRING", "place.at.zip"),
    ScanColumn(5, "dotted.name", "INT", "dotted.name"),
    ScanColumn(6, "part", "STRING", constant=pa.array(["p"])),
    ScanColumn(7, "later", "DATE", constant=pa.nulls(1, pa.date32())),
)
ALL = tuple(column.column_id for column in COLUMNS)


@pytest.fixture
def write(tmp_path):
    def write(table=ROWS, columns=COLUMNS, name="f.parquet", prefix="", **options):
        path = tmp_path / name
        deletes = {key: options.pop(key) for key in ("deleted_rows", "equality_deletes") if key in options}
        pq.write_table(table, path, **options)
        size = path.stat().st_size
        return ScanTask("parquet", f"lake/{name}", f"{prefix}{path}", len(table), size, columns, "v1", **deletes)

    return write


def contents(task, columns=None):
    return {column.name: values.to_pylist() for column, values in tasks.read(task, columns or task.columns)}


@pytest.fixture(params=[parquet._BATCH_ROWS, 4], ids=["one batch", "batches of 4 rows"])
def batches(request, monkeypatch):
    monkeypatch.setattr(parquet, "_BATCH_ROWS", request.param)


@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_task_reads_columns_struct_leaves_and_constants(write, prefix):
    found = contents(write(prefix=prefix))
    assert found["id"] == list(range(10))
    assert found["place.lat"] == [None if i == 4 else i / 2 for i in range(10)]
    assert found["place.at.zip"] == [None if i in (4, 5) else f"z{i}" for i in range(10)]
    assert found["dotted.name"] == list(range(10, 20))
    assert found["part"] == ["p"] * 10
    assert found["later"] == [None] * 10


def types(task):
    return {column.name: values.type for column, values in tasks.read(task, task.columns)}


@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("rows", [parquet._FEW_ROWS - 1, parquet._FEW_ROWS + 500])
def test_string_views_are_read_as_plain_strings(write, rows):
    """The size of the file decides about large or plain types; the values are the same."""
    texts, octets = [f"text number {i}" if i % 7 else None for i in range(rows)], [b"%d" % i for i in range(rows)]
    table = pa.table({"t": pa.array(texts, pa.string_view()), "b": pa.array(octets, pa.binary_view())})
    columns = (ScanColumn(1, "t", "STRING", "t"), ScanColumn(2, "b", "BINARY", "b"))
    task = write(table, columns, use_dictionary=False)
    assert contents(task) == {"t": texts, "b": octets}
    copied = (pa.large_string(), pa.large_binary()) if rows < parquet._FEW_ROWS else (pa.string(), pa.binary())
    assert tuple(types(task).values()) == copied


@pytest.mark.usefixtures("batches")
def test_column_beside_string_views_keeps_its_arrow_type(write):
    """A duration is a plain integer to readers that ignore the Arrow schema of the file."""
    table = pa.table({"t": pa.array(["text"] * 2000, pa.string_view()), "d": pa.array(range(2000), pa.duration("us"))})
    columns = (ScanColumn(1, "t", "STRING", "t"), ScanColumn(2, "d", "INTERVAL", "d"))
    task = write(table, columns, use_dictionary=False)
    assert types(task) == {"t": pa.large_string(), "d": pa.duration("us")}


def test_columns_read_in_small_blocks_have_their_values(write, monkeypatch):
    monkeypatch.setattr(parquet, "BLOCK_BYTES", 1)
    assert contents(write())["place.at.zip"][:2] == ["z0", "z1"]


@pytest.mark.usefixtures("batches")
def test_deleted_rows_are_left_out(write):
    task = write(deleted_rows=pa.array([0, 4, 9, 500], pa.int64()), row_group_size=3)
    found = contents(task)
    assert found["id"] == [1, 2, 3, 5, 6, 7, 8]
    assert found["place.at.zip"] == ["z1", "z2", "z3", None, "z6", "z7", "z8"]
    assert found["part"] == ["p"] * 7


def equality_delete(tmp_path, rows, *columns):
    path = tmp_path / f"delete-{len(list(tmp_path.iterdir()))}.parquet"
    pq.write_table(rows, path)
    by_name = {column.name: column for column in COLUMNS}
    return EqualityDelete(str(path), tuple((by_name[name], path) for name, path in columns))


@pytest.mark.usefixtures("batches")
def test_equality_deletes_are_null_safe(write, tmp_path):
    by_name = equality_delete(tmp_path, pa.table({"n": ["c", None]}), ("name", "n"))
    by_two = equality_delete(
        tmp_path, pa.table({"i": pa.array([0, 3, 2], pa.int64()), "n": ["a", "b", "b"]}), ("id", "i"), ("name", "n")
    )
    task = write(equality_deletes=(by_name, by_two), deleted_rows=pa.array([7]))
    assert contents(task)["id"] == [3, 8, 9]


@pytest.mark.usefixtures("batches")
def test_equality_deletes_match_a_constant_and_a_struct_leaf(write, tmp_path):
    other = equality_delete(tmp_path, pa.table({"p": ["q", "p"], "l": [0.0, -0.0]}), ("part", "p"), ("place.lat", "l"))
    same = equality_delete(tmp_path, pa.table({"p": ["p", "p"], "l": [0.0, None]}), ("part", "p"), ("place.lat", "l"))
    assert contents(write(equality_deletes=(other,)))["id"] == list(range(10))
    assert contents(write(equality_deletes=(other, same)))["id"] == [1, 2, 3, 5, 6, 7, 8, 9]


@pytest.mark.usefixtures("batches")
def test_file_with_all_rows_deleted_has_zero_counts(write):
    task = write(deleted_rows=pa.array(range(10)))
    for answer in scan(0, task, Work(ALL)):
        assert (answer.error, answer.partial.row_count, answer.partial.null_count) == ("", 0, 0)


def test_empty_file_has_zero_counts(write):
    task = write(ROWS[:0])
    for answer in scan(0, task, Work(ALL, ((1, 2),))):
        assert (answer.error, answer.partial.row_count) == ("", 0)


@pytest.mark.usefixtures("batches")
def test_dictionary_of_a_repetitive_column_is_kept(write):
    rows = pa.table({"id": pa.array(range(3000)), "name": ["x", "y", None] * 1000})
    task = write(rows, COLUMNS[:2])
    reader = tasks.open_task(task)
    kinds = {found.column.name: found.values.type for found in reader.columns(task.columns)}
    reader.close()
    assert pa.types.is_dictionary(kinds["name"])
    (answer,) = scan(0, task, Work((2,)))
    assert (answer.partial.null_count, answer.partial.min, answer.partial.max) == (1000, "x", "y")


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": False, "column_encoding": {"name": "DELTA_BYTE_ARRAY"}},
        {"use_dictionary": False},
        {"dictionary_pagesize_limit": 100},
    ],
)
def test_other_encodings_are_read(write, options):
    rows = pa.table({"id": pa.array(range(3000)), "name": [f"v{i % 50}" for i in range(3000)]})
    (answer,) = scan(0, write(rows, COLUMNS[:2], **options), Work((2,)))
    assert answer.error == ""
    assert sketches.estimate(answer.partial.theta).ndv == 50


def test_int96_timestamps_keep_distant_instants(write):
    far = [dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1), None]
    rows = pa.table({"at": pa.array(far, pa.timestamp("us"))})
    task = write(rows, (ScanColumn(1, "at", "TIMESTAMP", "at"),), use_deprecated_int96_timestamps=True)
    (answer,) = scan(0, task, Work((1,)))
    assert answer.partial.max == "9999-12-31T00:00:00"


def test_missing_file_is_named_by_its_path_in_the_lake(write, tmp_path):
    task = write()
    (tmp_path / "f.parquet").unlink()
    with pytest.raises(UpstreamError, match=r'file "lake/f.parquet": no such file') as refused:
        tasks.open_task(task)
    assert str(tmp_path) not in str(refused.value)
    answers = scan(0, task, Work((1, 2), ((1, 2),)))
    assert {answer.error for answer in answers} == {'file "lake/f.parquet": no such file'}


@pytest.mark.parametrize("content", [b"", b"PAR1 not a Parquet file PAR1", b"x" * 100])
def test_damaged_file_is_named_by_its_path_in_the_lake(write, tmp_path, content):
    task = write()
    (tmp_path / "f.parquet").write_bytes(content)
    with pytest.raises(UpstreamError, match=r'^file "lake/f.parquet": ') as refused:
        tasks.open_task(task)
    assert str(tmp_path) not in str(refused.value)
    assert len(str(refused.value)) < 350


@pytest.mark.usefixtures("batches")
def test_damaged_column_leaves_the_others_readable(write, tmp_path):
    rows = pa.table({"id": pa.array(np.arange(5000)), "name": [f"n{i}" for i in range(5000)]})
    task = write(rows, COLUMNS[:2], compression="snappy", use_dictionary=False)
    chunk = pq.read_metadata(tmp_path / "f.parquet").row_group(0).column(1)
    content = bytearray((tmp_path / "f.parquet").read_bytes())
    content[chunk.data_page_offset + 60 : chunk.data_page_offset + 3000] = b"\xff" * 2940
    (tmp_path / "f.parquet").write_bytes(content)
    sound, damaged = sorted(scan(0, task, Work((1, 2))), key=lambda answer: answer.column_id)
    assert sound.partial.max == "4999"
    assert damaged.partial is None
    assert damaged.error.startswith('file "lake/f.parquet", column "name": ')


@pytest.mark.usefixtures("batches")
def test_column_with_fewer_values_than_rows_is_damaged(write):
    """pyarrow returns the values present, which would pass for all."""
    task = write(ROWS.select(["id"]), COLUMNS[:1], write_statistics=False, store_schema=False)
    content = Path(task.location).read_bytes()
    size = struct.unpack("<I", content[-8:-4])[0]
    footer = bytearray(content[-8 - size : -8])
    ten = b"\x16\x14"  # an i64 of Thrift: the rows of the file first, those of the row group last
    for place in (footer.find(ten), footer.rfind(ten)):
        footer[place + 1] = 22
    Path(task.location).write_bytes(content[: -8 - size] + bytes(footer) + content[-8:])
    assert pq.ParquetFile(task.location).metadata.num_rows == 11
    (found,) = scan(0, task, Work(ALL[:1]))
    assert found.error == 'file "lake/f.parquet", column "id": the file is damaged: 10 values for 11 rows'


def test_missing_columns_are_named_and_others_are_read(write):
    task = write(columns=(*COLUMNS, ScanColumn(8, "gone", "INT", "gone"), ScanColumn(9, "x", "INT", "place.nothing")))
    answers = {answer.column_id: answer for answer in scan(0, task, Work((1, 8, 9, 99)))}
    assert answers[1].partial.row_count == 10
    assert 'no column "gone"' in answers[8].error
    assert 'no column "place.nothing"' in answers[9].error
    assert "not planned" in answers[99].error


def test_unknown_reader_is_refused(write):
    task = write()
    other = ScanTask("carrier-pigeon", "a", "b", 1, 1, task.columns, "")
    with pytest.raises(UpstreamError, match="carrier-pigeon"):
        tasks.open_task(other)


def test_partials_round_trip_through_arrow_batches(write):
    answers = scan(7, write(), Work(ALL, ((1, 2),)))
    answers += scan(8, ScanTask("carrier-pigeon", "a", "b", 1, 1, (), ""), Work((1,)))
    assert from_batch(to_batch(answers)) == answers


def test_column_group_counts_distinct_tuples_with_nulls(write):
    rows = pa.table({"id": pa.array([1, 1, 2, None, None, 1]), "name": ["a", "a", "a", None, None, None]})
    answers = scan(0, write(rows, COLUMNS[:2]), Work((), ((1, 2),), SketchSelection(False, False)))
    found = {
        a.column_ids: (a.partial.row_count, a.partial.null_count, sketches.estimate(a.partial.theta).ndv)
        for a in answers
    }
    assert found == {(1, 2): (6, 2, 4), (1,): (6, 2, 3), (2,): (6, 3, 2)}  # a null is a value of a tuple


@pytest.mark.usefixtures("batches")
def test_lance_fragments_are_read_without_deleted_rows(tmp_path):
    lance = pytest.importorskip("lance")
    rows = ROWS.select(["id", "name", "place"])
    dataset = lance.write_dataset(rows, tmp_path / "t", max_rows_per_file=6)
    dataset.delete("id = 2 OR id = 7")
    columns = (*COLUMNS[:3], COLUMNS[5])
    found = []
    for fragment in lance.dataset(tmp_path / "t").get_fragments():
        where = {"version": dataset.version, "fragment_id": fragment.fragment_id}
        task = ScanTask("lance", "t#1", str(tmp_path / "t"), 4, 0, columns, "v", arguments=where)
        found.append(contents(task))
    assert [part["id"] for part in found] == [[0, 1, 3, 4, 5], [6, 8, 9]]
    assert found[0]["place.lat"] == [0.0, 0.5, 1.5, None, 2.5]
    assert found[1]["part"] == ["p"] * 3
    with pytest.raises(UpstreamError, match="t#1"):
        tasks.open_task(ScanTask("lance", "t#1", str(tmp_path / "no"), 4, 0, columns, "v", arguments=where))


@pytest.fixture
def lance_reads(monkeypatch):
    """The numbers of columns of the reads of fragments."""
    lance = pytest.importorskip("lance")
    scanner, reads = lance.LanceFragment.scanner, []

    def counted(self, *, columns, **options):
        reads.append(len(columns))
        return scanner(self, columns=columns, **options)

    monkeypatch.setattr(lance.LanceFragment, "scanner", counted)
    return reads


def lance_task(path, rows, columns):
    import lance

    dataset = lance.write_dataset(rows, path, max_rows_per_file=10**6)
    return ScanTask(
        "lance", "t#1", str(path), len(rows), 0, columns, "v", arguments={"version": dataset.version, "fragment_id": 0}
    )


def test_columns_of_a_lance_fragment_are_read_a_hundred_at_a_time(tmp_path, lance_reads):
    """Each read takes a time in proportion to all columns of the fragment."""
    rows = pa.table({f"c{number}": [number, None] for number in range(250)})
    columns = tuple(ScanColumn(number + 1, f"c{number}", "INT", f"c{number}") for number in range(250))
    assert contents(lance_task(tmp_path / "t", rows, columns)) == rows.to_pydict()
    assert lance_reads == [100, 100, 50]


def test_large_columns_of_a_lance_fragment_are_read_apart(tmp_path, lance_reads, monkeypatch):
    """The block of columns in memory is bounded, whatever their types."""
    monkeypatch.setattr("capture.connectors.lance.reader.BLOCK_BYTES", 200_000)
    texts = [f"{number:0100}" for number in range(1000)]
    rows = pa.table({f"i{at}": range(1000) for at in range(30)} | {f"s{at}": texts for at in range(5)})
    columns = tuple(ScanColumn(at + 1, name, "INT", name) for at, name in enumerate(rows.column_names))
    assert contents(lance_task(tmp_path / "t", rows, columns)) == rows.to_pydict()
    assert lance_reads[0] == 25 and lance_reads[-4:] == [1, 1, 1, 1]
    assert len(lance_reads) < len(columns) / 2


def test_damaged_column_of_a_lance_fragment_fails_alone(tmp_path):
    pytest.importorskip("lance")
    columns = (*COLUMNS[:2], ScanColumn(8, "no", "INT", "no"), *COLUMNS[2:4])
    reader = tasks.open_task(lance_task(tmp_path / "t", ROWS.select(["id", "name", "place"]), columns))
    found = {each.column.name: each for each in reader.columns(columns)}
    reader.close()
    assert [name for name, each in found.items() if each.error] == ["no"]
    assert found["place.at.zip"].values.to_pylist() == [None if at == 4 else ZIPS[at] for at in range(10)]


class CountedTable:
    """A table that counts the columns taken from it: each takes time."""

    def __init__(self, table):
        self.table, self.schema, self.taken = table, table.schema, 0

    column_names = property(lambda self: self.table.column_names)

    @property
    def columns(self):
        self.taken += self.table.num_columns
        return self.table.columns

    def column(self, at):
        self.taken += 1
        return self.table.column(at)


def test_columns_of_a_wide_table_are_taken_once_each():
    table = CountedTable(pa.table({f"c{number}": [number] for number in range(300)}))
    assert [column_values.leaf(table, f"c{number}")[0].as_py() for number in range(300)] == list(range(300))
    assert table.taken == 300
