"""The engine that answers from metadata alone."""
