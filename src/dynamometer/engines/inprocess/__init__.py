"""Engines inside this process: the same rows without HTTP."""
