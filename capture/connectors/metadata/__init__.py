"""What metadata of several formats says of columns: analysed statistics, comments, bounds by known writers."""
