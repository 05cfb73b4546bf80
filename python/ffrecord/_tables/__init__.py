"""Columns: schemas, values, and tables of pyarrow."""
