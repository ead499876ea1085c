"""Storage: locations, directory lakes, cloud file systems, caches of immutable files."""
