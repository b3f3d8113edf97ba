"""A run directory and a port in, the process that shows its histograms while it is under way out."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dynamometer.errors import UsageError


@contextmanager
def shown_live(directory: Path, port: int) -> Iterator[None]:
    """Serves http://127.0.0.1:PORT/metrics until the block ends; port 0: nothing is served."""
    if not port:
        yield
        return
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as wrong:
            raise UsageError(f"--prometheus {port} cannot be used: {wrong.strerror}; give another port") from wrong
    command = [sys.executable, "-m", "dynamometer.record.follow", str(directory), str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
