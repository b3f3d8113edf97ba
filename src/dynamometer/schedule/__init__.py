"""WHEN to ask. A law, a rate and a seed in, an array of due times out. No clock, no I/O."""

from dynamometer.schedule.arrivals import build
from dynamometer.schedule.ramp import rate_at
from dynamometer.schedule.shape import Shape
from dynamometer.schedule.window import Window

__all__ = ["Shape", "Window", "build", "rate_at"]
