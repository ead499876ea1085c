"""`python -m statflight`: the command line."""

from flight_server.cli import main

main()
