"""Rules over statistics: their grammar, the measures they compare, and what becomes of them."""
