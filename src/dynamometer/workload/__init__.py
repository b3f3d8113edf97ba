"""WHAT to ask. A `Workload` and a seed in, requests out. Pure but for reading the named data file."""
