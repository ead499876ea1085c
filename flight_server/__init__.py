"""How statistics are asked for and handed out: Arrow Flight server, worker process, command line."""
