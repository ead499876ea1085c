"""The durable queue of captures."""
