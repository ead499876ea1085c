"""Commands without a server: tables by their paths, captured and read in this process."""
