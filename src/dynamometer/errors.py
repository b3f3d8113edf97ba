"""The exception tree. A message says what, where, wanted and next; `dyno` prints that line and sets the exit code.

DynoError
├── UsageError          the request itself is wrong: bad option, bad file, unknown name      exit 2
│   ├── MissingExtra    an optional package is not installed; names the extra to install     exit 2
│   └── MissingPath     a file or a run directory is not there                               exit 2
├── GateFailed          a threshold that the user set was not met                            exit 1
├── TargetError         the engine under test cannot be reached, started or trusted          exit 3
├── RecordError         a record cannot be read or written                                   exit 4
└── Refused             the answer would not be sound; the message gives the reason          exit 5
"""

from __future__ import annotations


class DynoError(Exception):
    """Root of all errors that a user can act on. `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(DynoError):
    exit_code = 2


class MissingExtra(UsageError):
    """An optional dependency is absent."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; it comes with: pip install 'dynamometer[{extra}]'")
        self.package, self.extra = package, extra


class MissingPath(UsageError):
    pass


class GateFailed(DynoError):
    exit_code = 1


class TargetError(DynoError):
    exit_code = 3


class RecordError(DynoError):
    exit_code = 4


class Refused(DynoError):
    exit_code = 5
