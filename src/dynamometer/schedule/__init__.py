"""WHEN to ask. A law, a rate and a seed in, an array of due times out. No clock, no I/O."""
