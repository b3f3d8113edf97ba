"""VIEWS. Rows in, figures out: SQL that a person can read, and quantiles with intervals."""
