"""Publications of statistics in the homes where other engines look for them."""
