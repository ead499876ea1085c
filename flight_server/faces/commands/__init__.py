"""The commands of `statflight`, grouped by purpose. `flight_server.cli` lists them."""
