"""Output for people: tables, reports, doctor, demo."""
