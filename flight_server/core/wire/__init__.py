"""Wire formats: parsing of requests, and statuses of errors."""
