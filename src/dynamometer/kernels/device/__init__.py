"""Device code: what Triton compiles. Its functions take pointers and tiles, so the house's limits on arguments and types do not apply."""
