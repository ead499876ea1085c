"""The control plane: lakes, jobs, leases, commits, policies."""
