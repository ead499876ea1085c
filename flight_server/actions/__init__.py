"""DoAction: one small function per action. A body comes in as JSON bytes, each result goes out as JSON bytes."""

from flight_server.actions import captures, connectors, describing, jobs, publishing, reads, records, scans
from flight_server.actions.reads import release
from flight_server.actions.registry import ACTIONS, Action, Call, functions
