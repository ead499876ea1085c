"""The steps from the layout of each release to the next one.

A step is a function of a connection, which runs in a transaction of a copy of the file (`store.duckdb.upgrading`). It
has the SQL of its own time: `store.duckdb.layout` goes on and a released step does not change any more. After all steps
a file has the tables, columns and views, in their order, that `layout` gives to a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import duckdb

from store.duckdb.upgrades import from_19

STEPS: Final[Mapping[int, Callable[[duckdb.DuckDBPyConnection], None]]] = {19: from_19.upgrade}
"""Layout → the step from it to the next one."""
