"""The process of a worker that the server started. Its arguments, a token among them, are in a variable."""

from __future__ import annotations

import json
import os
import sys

from flight_server.core.config import CHILD_VARIABLE
from flight_server.process.runtime import WORKER_MEMORY, reuse_memory

if __name__ == "__main__":
    reuse_memory(WORKER_MEMORY)  # before pyarrow is imported
    from flight_server.process.run_worker import run_worker

    sys.exit(run_worker(**json.loads(os.environ.pop(CHILD_VARIABLE))))
