"""Kernels and probes on silicon. A leaf: nobody imports it."""
