"""The engine that captures statistics from metadata only."""
