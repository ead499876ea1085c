"""Faces of the server: the command line, Flight SQL, pages, the Iceberg REST catalog; each can be taken away."""
