"""A module of this room and its settings in, a process that runs it and answers by lines out.

Some things can only be set before a process starts: an instruction set's limit, a memory limit. A child reads a word
a line and answers with a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping

import msgspec

from dynamometer.errors import TargetError

Answer = dict[str, object]


class Child:
    """A running child; `with` ends it."""

    def __init__(
        self,
        module: str,
        settings: msgspec.Struct,
        environment: Mapping[str, str],
        enter: Callable[[], None] | None = None,
    ) -> None:
        command = [sys.executable, "-m", f"dynamometer.kernels.{module}", msgspec.json.encode(settings).decode()]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            preexec_fn=enter,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, word: str) -> Answer:
        """The answer to a word. TargetError: the child died, and with which words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        for line in self._process.stdout:
            if line.startswith("{"):
                found: Answer = json.loads(line)
                return found
        code = self._process.wait()
        said = self._process.stderr.read().strip().splitlines() if self._process.stderr else []
        why = "killed for memory" if code == -9 else (said[-1][:160] if said else f"exit code {code}")
        raise TargetError(f"the child process died: {why}")


def serve(answer: Callable[[str], Answer]) -> None:
    """The child's side: a line of JSON for each word, until the parent closes."""
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), flush=True)
