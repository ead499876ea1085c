"""Other dialects of the same questions, one file each."""
