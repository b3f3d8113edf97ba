"""What starting `dyno` costs, counted in packages rather than in seconds."""

from __future__ import annotations

import subprocess
import sys


def loaded(code: str) -> set[str]:
    """Top-level packages in memory after `code` ran in a fresh interpreter."""
    script = f"import sys\n{code}\nprint('\\n'.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {"numpy", "duckdb", "altair", "scipy", "rich", "uvloop", "msgspec", "torch", "transformers", "xllamacpp"}


def test_help_loads_no_heavy_package() -> None:
    code = (
        "import contextlib, io\nfrom dynamometer.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    main(['--help'])"
    )
    assert not loaded(code) & HEAVY


def test_importing_the_package_loads_nothing_else() -> None:
    assert not loaded("import dynamometer") & (HEAVY | {"click"})


def test_the_nouns_need_only_msgspec_and_numpy() -> None:
    assert loaded("import dynamometer.types") & HEAVY == {"numpy", "msgspec"}
