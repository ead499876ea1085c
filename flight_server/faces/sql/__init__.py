"""Flight SQL: statements are parsed, validated, planned, and executed over flights."""
