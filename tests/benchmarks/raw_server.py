"""A bare pyarrow Flight server over cached batches: hardly any server in Python can be faster.

`raw_server.py URI` reads its data once, from the server it is compared with, and prints its own address.
Tickets: `empty`, `point`, `bundle`, `bulk`, `integers`. Actions: `empty` returns one small result.
`--duckdb FILE` adds `duckdb`: three integer columns straight from DuckDB's own reader, without joins, conditions or
Python code in between.
"""

from __future__ import annotations

import json
import sys

import duckdb
import pyarrow as pa
import pyarrow.flight as flight

INTEGERS = ["snapshot_id", "row_count", "null_count"]
BATCH_ROWS = 65_536


def read(client: flight.FlightClient, **command: object) -> pa.Table:
    return client.do_get(flight.Ticket(json.dumps(command).encode())).read_all()


class RawServer(flight.FlightServerBase):
    def __init__(self, uri: str, with_bulk: bool, database: str | None):
        super().__init__("grpc://127.0.0.1:0")
        self.database = duckdb.connect(database, read_only=True) if database is not None else None
        with flight.connect(uri) as client:
            columns = read(client, table="stats.columns")
            self.tables = {b"empty": columns.slice(0, 0), b"point": columns.slice(0, 1).combine_chunks()}
            self.tables[b"bundle"] = columns.slice(0, 1000).combine_chunks()
            if with_bulk:
                bulk = read(client, table="stats.file_columns")
                bulk = pa.Table.from_batches(bulk.combine_chunks().to_batches(BATCH_ROWS))
                self.tables |= {b"bulk": bulk, b"integers": bulk.select(INTEGERS)}

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        if ticket.ticket == b"duckdb" and self.database is not None:
            # stored once for all snapshots, so it is read as often as the flight has its rows
            cursor, stored = self.database.cursor(), "SELECT column_id, row_count, null_count FROM stats_file_columns"
            ((rows,),) = cursor.sql(f"SELECT count(*) FROM ({stored})").fetchall()
            found = cursor.sql(" UNION ALL ".join([stored] * (self.tables[b"bulk"].num_rows // rows)))
            return flight.RecordBatchStream(found.to_arrow_reader(BATCH_ROWS))
        return flight.RecordBatchStream(self.tables[ticket.ticket])

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        return [flight.Result(pa.py_buffer(b'{"status":"ok"}'))]


if __name__ == "__main__":
    database = sys.argv[sys.argv.index("--duckdb") + 1] if "--duckdb" in sys.argv else None
    server = RawServer(sys.argv[1], "--bulk" in sys.argv, database)
    sys.stdout.write(f"listening on grpc://127.0.0.1:{server.port}\n")
    sys.stdout.flush()
    server.serve()
