"""Sensor series and the times of requests in, what each sensor said while each request was under way out.

Every request gets a window of the same length, whatever its own was: a longer window would meet more readings, and the
worst of many readings is worse than the worst of few, so slow requests would look guilty of any noise.
"""

from __future__ import annotations

from typing import Final, Literal

import duckdb
import msgspec
import numpy as np

from dynamometer.metrics import views
from dynamometer.types import Float64


class Sensor(msgspec.Struct, frozen=True):
    """A series of samples. `worse`: 1 when a high reading is suspect, -1 when a low one is.

    `reads`: `now` the state at the reading; `since` something over the time since the reading before; `rise` a counter.
    """

    name: str
    worse: Literal[1, -1] = 1
    reads: Literal["now", "since", "rise"] = "now"


SENSORS: Final = (
    Sensor("client_loop_lag_ms", 1, "since"),
    Sensor("client_gc_pause_ms", 1, "since"),
    Sensor("cpu_foreign_cores", 1, "since"),
    Sensor("cpu_steal_cores", 1, "since"),
    Sensor("cgroup_throttled_s", 1, "since"),
    Sensor("frequency_mhz", -1),
    Sensor("memory_available_bytes", -1),
    Sensor("requests_waiting"),
    Sensor("requests_running"),
    Sensor("kv_cache_usage_ratio"),
    Sensor("preemptions_total", 1, "rise"),
    Sensor("gpu_throttled_by_power_cap"),
    Sensor("gpu_throttled_by_hardware"),
    Sensor("gpu_throttled_by_heat_software"),
    Sensor("gpu_throttled_by_heat_hardware"),
    Sensor("gpu_throttled_by_power_brake"),
    Sensor("gpu_clock_mhz", -1),
    Sensor("gpu_pcie_sent_bytes_per_s", 1, "since"),
    Sensor("gpu_pcie_received_bytes_per_s", 1, "since"),
)


def beside(connection: duckdb.DuckDBPyConnection, from_ns: Float64, window_ns: float) -> dict[str, Float64]:
    """Worst reading of each sensor from `from_ns` (one a request) on, for `window_ns`; sensors without readings are
    left out. Of several devices the worst counts."""
    found = {}
    for sensor in SENSORS:
        worst = "min" if sensor.worse < 0 else "sum" if sensor.reads == "rise" else "max"
        query = f"select at_ns, {worst}(value) as value from samples where name = '{sensor.name}'"
        series = views.columns_of(connection, f"{query} group by at_ns order by at_ns")
        if len(series["at_ns"]) >= 2:
            found[sensor.name] = _during(sensor, series["at_ns"], series["value"], (from_ns, from_ns + window_ns))
    return found


def _during(sensor: Sensor, at_ns: Float64, value: Float64, window: tuple[Float64, Float64]) -> Float64:
    last = len(at_ns) - 1
    begin = np.clip(np.searchsorted(at_ns, window[0], side="right") - 1, 0, last)  # the last reading before
    end = np.clip(np.searchsorted(at_ns, window[1], side="left"), 0, last)  # the first reading after
    if sensor.reads == "rise":
        return np.maximum(value[end] - value[begin], 0.0)
    if sensor.reads == "since":  # a reading tells of the time before it
        begin = np.clip(np.searchsorted(at_ns, window[0], side="left"), 0, end)
    edges = np.column_stack((begin, end + 1)).ravel()
    reduce = np.minimum if sensor.worse < 0 else np.maximum
    found: Float64 = reduce.reduceat(np.append(value, value[-1]), edges)[::2]
    return found
