"""Capture workers: Flight clients that lease jobs and run them."""
