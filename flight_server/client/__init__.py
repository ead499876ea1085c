"""The Python client. It requires only pyarrow, and imports neither `store` nor `capture`."""

from flight_server.client.connection import DEFAULT_URI
from flight_server.client.errors import reason
from flight_server.client.stats_client import Actions, StatsClient, connect
from flight_server.client.table_names import full_name, join_name, of_table, split_name

__all__ = [
    "DEFAULT_URI",
    "Actions",
    "StatsClient",
    "connect",
    "full_name",
    "join_name",
    "of_table",
    "reason",
    "split_name",
]
