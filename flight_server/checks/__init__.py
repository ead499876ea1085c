"""Rules over statistics: their grammar, measures and results."""
