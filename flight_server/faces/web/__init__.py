"""Read-only pages of the catalog: server-rendered, each with a JSON twin. They need no script."""
