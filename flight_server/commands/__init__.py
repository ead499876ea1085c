"""The commands of `statflight`, by what they are for. `flight_server.cli` puts them together."""
