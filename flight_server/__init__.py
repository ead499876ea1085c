"""The Arrow Flight server, its worker process, its clients and the command line."""
