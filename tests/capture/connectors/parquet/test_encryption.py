"""Files with encrypted columns: pyarrow ends the process when it is asked for their metadata, so it never is."""

from __future__ import annotations

import base64

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.compute import local
from capture.compute.file_scan import Work, scan
from capture.compute.sampling import Draw, spread_points
from capture.connectors.footers.metadata import ENCRYPTED, read_metadata
from capture.connectors.footers.reader import read_footer
from capture.connectors.spi import ScanColumn, ScanTask
from capture.connectors.storage.places import Unreadable, open_place
from capture.spec import Budget

encryption = pytest.importorskip("pyarrow.parquet.encryption")

ROWS = 2000
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS)),
        "secret": pa.array(["a", "b"] * (ROWS // 2), pa.string_view()),
        "at": pa.array([{"x": 1, "y": None}] * ROWS, pa.struct({"x": pa.int64(), "y": pa.string()})),
    }
)


def wrapped(key: bytes) -> bytes:
    return base64.b64encode(key)


def written(folder, secret: str | None, *, plaintext_footer: bool = True) -> ScanTask:
    """Writes TABLE with one encrypted column, or with a footer that is; returns the task of its four leaves."""

    class Keys(encryption.KmsClient):
        def __init__(self, _):
            super().__init__()

        def wrap_key(self, key, master):
            return wrapped(key)

    how = encryption.EncryptionConfiguration(
        footer_key="f",
        column_keys={"k": [secret or "id"]},
        plaintext_footer=plaintext_footer,
        data_key_length_bits=128,
    )
    factory = encryption.CryptoFactory(Keys)
    keys = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how) if secret else None
    path = str(folder / "f.parquet")
    with pq.ParquetWriter(path, TABLE.schema, encryption_properties=keys) as file:
        file.write_table(TABLE, row_group_size=ROWS // 2)
    kinds = {"id": "INT", "secret": "STRING", "at.x": "INT", "at.y": "STRING"}
    columns = tuple(ScanColumn(i, name, kind, name) for i, (name, kind) in enumerate(kinds.items(), 1))
    return ScanTask("parquet", "f.parquet", path, ROWS, 1000, columns, "v")


@pytest.mark.parametrize(("secret", "number"), [("secret", 2), ("at.y", 4), ("id", 1)])
def test_clear_columns_are_scanned_beside_an_encrypted_one(tmp_path, secret, number):
    task = written(tmp_path, secret)
    answers = {a.column_id: a for a in scan(0, task, Work((1, 2, 3, 4), groups=((1, 2, 3, 4),)))}
    assert answers.pop(None).error == f'file "f.parquet", column "{secret}": {ENCRYPTED}'
    assert answers.pop(number).error == f'file "f.parquet", column "{secret}": {ENCRYPTED}'
    assert {column_id: answer.partial.row_count for column_id, answer in answers.items()} == dict.fromkeys(
        {1, 2, 3, 4} - {number}, ROWS
    )


def test_sizes_and_samples_leave_an_encrypted_column_out(tmp_path):
    task = written(tmp_path, "secret")
    sizes = local._sizes(task)
    assert sizes[1] > 0
    assert sizes[2] == 0
    draw = Draw([task], spread_points(), Budget(max_rows=ROWS // 2))
    assert [t.arguments["row_groups"] for t in draw.take()] == [[1]]


def test_footer_has_the_statistics_of_clear_columns(tmp_path):
    written(tmp_path, "secret")
    footer = read_footer(open_place(str(tmp_path / "f.parquet"), {}))
    by_name = {leaf.name: stats for leaf, stats in zip(footer.leaves, footer.rolled_up(), strict=True)}
    assert (by_name["id"].lower, by_name["id"].upper, by_name["id"].null_count) == (0, ROWS - 1, 0)
    assert (by_name["secret"].lower, by_name["secret"].upper, by_name["secret"].null_count) == (None, None, None)


@pytest.mark.parametrize(("secret", "number"), [("secret", 1), ("at.x", 2), (None, None)])
def test_encrypted_columns_are_found_in_the_footer(tmp_path, secret, number):
    written(tmp_path, secret)
    with open_place(str(tmp_path / "f.parquet"), {}).open() as file:
        found = read_metadata(file)
    assert found.encrypted == (frozenset() if number is None else {number})
    assert found.metadata.num_rows == ROWS


def test_encrypted_footer_is_named_as_the_reason(tmp_path):
    task = written(tmp_path, "secret", plaintext_footer=False)
    with pytest.raises(Unreadable, match=r'file "f\.parquet" cannot be read as Parquet \(its footer is encrypted'):
        read_footer(open_place(task.location, {}))
    (answer,) = scan(0, task, Work((1,)))
    assert answer.error.startswith('file "f.parquet": its footer is encrypted')
