"""A run of decode steps whose length grows evenly: its first step in, the end of any step (and the step at any time)
out."""

from __future__ import annotations

from math import sqrt

import numpy as np


class Stretch:
    """Step 1 ends at `first_s`; step 2 takes `period_s`, and every later one `slope_s` more than the one before it."""

    __slots__ = ("first_s", "period_s", "slope_s", "steps")

    def __init__(self, first_s: float, period_s: float, slope_s: float, steps: int) -> None:
        self.first_s, self.period_s, self.slope_s, self.steps = first_s, period_s, slope_s, steps

    def end_s(self, step: int) -> float:
        """When the `step`-th step ends, from 1."""
        i = step - 1
        return self.first_s + i * self.period_s + self.slope_s * i * (i - 1) / 2

    def step_at(self, at_s: float) -> int:
        """The first step that ends at `at_s` or later."""
        lack = at_s - self.first_s
        if lack <= 0:
            return 1
        half = self.slope_s / 2
        p = self.period_s - half
        if half > 1e-15:
            i = int((sqrt(p * p + 4 * half * lack) - p) / (2 * half))
        else:
            i, half = int(lack / self.period_s), 0.0
        while i * p + half * i * i < lack:  # rounding may have missed by a step
            i += 1
        while i > 0 and self.end_s(i) >= at_s:
            i -= 1
        return i + 1

    def ends_s(self) -> list[float]:
        """The end of every step."""
        if self.steps < 12:
            return [self.end_s(step) for step in range(1, self.steps + 1)]
        i = np.arange(self.steps, dtype=np.float64)
        ends: list[float] = (self.first_s + i * self.period_s + self.slope_s * i * (i - 1) / 2).tolist()
        return ends
