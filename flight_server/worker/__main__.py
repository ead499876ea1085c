"""The worker process that `statflight serve` starts; its arguments arrive in an environment variable."""

from __future__ import annotations

import json
import os
import sys

from flight_server.config import CHILD_VARIABLE
from flight_server.process.run_worker import run_worker

sys.exit(run_worker(**json.loads(os.environ.pop(CHILD_VARIABLE))))
