"""WHAT to ask. A `Workload` and a seed in, requests out. Pure but for reading the named data file."""

from dynamometer.workload.padding import TokenCounter
from dynamometer.workload.plan import Ask, Estimated, Plan, build, calibrate
from dynamometer.workload.trace import trace_offsets

__all__ = ["Ask", "Estimated", "Plan", "TokenCounter", "build", "calibrate", "trace_offsets"]
