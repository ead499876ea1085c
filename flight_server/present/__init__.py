"""What people look at: tables, reports, doctor, demo."""
