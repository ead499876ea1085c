"""Tables, snapshots, lakes, publications and checks."""
