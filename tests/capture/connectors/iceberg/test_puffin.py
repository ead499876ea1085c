"""The Puffin format: layout of the file, files of other writers, damaged files."""

from __future__ import annotations

import io
import json
import struct

import pyarrow as pa
import pytest
from pyiceberg.table.puffin import PuffinFile

from capture.connectors.iceberg import puffin
from store.model.columns import THETA

BLOBS = [
    puffin.Blob(THETA, (1,), 7, 3, b"one", {"ndv": "10"}),
    puffin.Blob(THETA, (2,), 7, 3, b"", {"ndv": "0"}),
    puffin.Blob("another-type", (1, 2), 7, 3, b"\x00PFA1", {}),
]


def test_written_blobs_are_read_back():
    content, footer = puffin.write(BLOBS)
    assert puffin.read(io.BytesIO(content)) == BLOBS
    assert content[-footer:][:4] == b"PFA1"


def test_pyiceberg_reads_written_blobs():
    content, footer = puffin.write(BLOBS)
    parsed = PuffinFile(content)
    assert [parsed.get_blob_payload(blob) for blob in parsed.footer.blobs] == [blob.data for blob in BLOBS]
    assert parsed.footer.blobs[0].properties == {"ndv": "10"}
    assert footer == len(content) - 4 - sum(len(blob.data) for blob in BLOBS)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_blobs_of_other_writers_are_read(codec):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as out:
        out.write(b"theta" * 100)
    packed = sink.getvalue().to_pybytes()
    payload = json.dumps(
        {
            "blobs": [
                {
                    "type": THETA,
                    "fields": [4],
                    "snapshot-id": 1,
                    "sequence-number": 1,
                    "offset": 4,
                    "length": len(packed),
                    "compression-codec": codec,
                }
            ]
        }
    ).encode()
    content = b"PFA1" + packed + b"PFA1" + payload + struct.pack("<i", len(payload)) + bytes(4) + b"PFA1"
    (blob,) = puffin.read(io.BytesIO(content))
    assert (blob.data, blob.fields, blob.properties) == (b"theta" * 100, (4,), {})


@pytest.mark.parametrize("content", [b"", b"PFA1", b"PFA1PFA1" + b"\xff" * 8 + b"PFA1", b"x" * 40])
def test_invalid_puffin_file_is_refused(content):
    with pytest.raises(ValueError, match="Puffin"):
        puffin.read(io.BytesIO(content))
