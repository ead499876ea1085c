"""Read-only pages of the catalog: server-rendered, without scripts, each with a JSON twin."""
