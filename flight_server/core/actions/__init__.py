"""DoAction: one small function per action. A body comes in as JSON bytes, each result goes out as JSON bytes."""

from flight_server.core.actions import captures, connectors, describing, jobs, reads, records
from flight_server.core.actions.reads import release
from flight_server.core.actions.registry import ACTIONS, Call, functions
from flight_server.core.part import Action
