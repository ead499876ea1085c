"""Parquet footers: reader, Thrift decoding, leaf types."""
