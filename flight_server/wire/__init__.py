"""Wire formats: bytes to requests, errors to statuses."""
