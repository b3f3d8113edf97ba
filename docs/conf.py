"""Sphinx's settings. The reference is written from the code just before the build, so it cannot lag behind it."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

import reference

from dynamometer import __version__

project = "Dynamometer"
author = "The Dynamometer authors"
project_copyright = f"2026, {author}"
version = release = __version__
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Dynamometer {release}"
html_show_sourcelink = False
nitpicky = True


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", lambda _: reference.write(Path(__file__).parent / "reference"))
