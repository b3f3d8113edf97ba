"""Device code: what Triton compiles. Pointers and tiles go in; the house's limits on arguments don't hold."""
