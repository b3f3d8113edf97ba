"""Nothing in, Altair out, loaded without what no picture needs.

Altair checks specs with jsonschema, which at import tries for validators of string formats. One of them,
rfc3987-syntax, builds a grammar of every IRI for one to three seconds when it is installed (some other package's
optional part brings it). No format is checked here, so it is left out while Altair is loaded.
"""

from __future__ import annotations

import sys

_SLOW = "rfc3987_syntax"

_hidden = _SLOW not in sys.modules
if _hidden:
    sys.modules[_SLOW] = None  # type: ignore[assignment]  # what makes Python's import say that it is not there
try:
    import altair as alt
finally:
    if _hidden:
        del sys.modules[_SLOW]

__all__ = ["alt"]
