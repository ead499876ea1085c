"""`python -m statflight`: the command line."""

from flight_server.cli import main

if __name__ == "__main__":
    main()
