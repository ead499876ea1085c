"""Export and import over Flight: the files of an export in pieces."""
