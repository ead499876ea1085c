"""The control plane: lakes, jobs, leases, publication, policies."""
