"""Publishers: write captured statistics to the homes where engines look for them."""
