"""Dynamometer: measure an LLM inference engine under load, model it, decide. Importing this loads nothing else."""

__version__ = "0.1.0"
