"""Lance: versions, zone maps, statistics in the config."""
