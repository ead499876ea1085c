"""Generated questions to pyiceberg by the Iceberg REST catalog: rows of brute force, or a refusal with its reason."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import RESTError

from tests.flight_server.faces.iceberg_rest.questions import FORMATS, OF_PARTITION, Reader, found, questions, whole
from tests.flight_server.live_server import serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

QUESTIONS: Final = int(os.environ.get("STATFLIGHT_QUESTIONS", "40"))  # of each table
SEED: Final = int(os.environ.get("STATFLIGHT_SEED", "1"))
PYICEBERG: Final = Reader(null_in=False)


def test_pyiceberg_answers_like_brute_force(tmp_path: Path) -> None:
    rows = whole(with_nan=True)
    refused = dict.fromkeys(FORMATS, 0)
    with serving(tmp_path, "--http-port", 0, "--workers", 1) as server, server.connect() as client:
        (base,) = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())
        for format, make in FORMATS.items():
            uri, schema = make(tmp_path / format, with_nan=True)
            client.act("register_connector", {"catalog": format, "format": format, "uri": str(uri)})
            client.act("discover", {"catalog": format})
            table = RestCatalog("door", uri=f"{base}iceberg").load_table((format, schema, "t"))
            for question in questions(QUESTIONS, SEED, rows):
                where = question.where.sql(typed=False)
                scan = table.scan(row_filter=where, selected_fields=question.columns)
                try:
                    answer = scan.to_arrow().select(question.columns).to_pylist()
                except RESTError as refusal:
                    assert "pyiceberg would find other rows" in str(refusal), (format, where)
                    assert question.where.columns & set(OF_PARTITION), (format, where)
                    refused[format] += 1
                    continue
                seen = found([list(row.values()) for row in answer])
                assert seen == question.answer(rows, PYICEBERG), (format, where, question.columns)
    assert refused["iceberg"] == 0 and all(count < QUESTIONS / 2 for count in refused.values()), refused
