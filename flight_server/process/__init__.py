"""The server process: start, listeners, signals, health, metrics."""
