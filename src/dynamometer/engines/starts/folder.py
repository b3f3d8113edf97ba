"""A model's name or path in, what the Python engines load out: a folder of safetensors, made from a GGUF file if need
be.
"""

from __future__ import annotations

import subprocess
from math import nan
from pathlib import Path

from dynamometer.engines import embedded
from dynamometer.engines.starts import unpack
from dynamometer.errors import MissingPath, TargetError


def model_folder(model: str, python: str, progress: embedded.Progress) -> str:
    """A folder as it is, a hub's name as it is, a GGUF file or the packaged model as a folder in bfloat16, made once.

    `python`: an interpreter with transformers, gguf and torch, for the making.
    """
    path = Path(model).expanduser()
    if model and path.is_dir():
        if not (path / "config.json").is_file():
            raise MissingPath(f"{path} holds no config.json; give the folder of a model in Hugging Face's layout")
        return str(path.resolve())
    known = (model or "smollm2").lower() in embedded.PACKAGES
    if not known and path.suffix != ".gguf":
        if model.count("/") != 1 or model.startswith((".", "/", "~")):
            raise MissingPath(
                f"model {model!r} is no folder and no name of a hub (owner/name); give a folder or a .gguf file"
            )
        return model
    # the packaged file itself, not its default quantization: every precision that there is
    source = embedded.model_file(model or "smollm2", "Q4_1" if known else "", progress)
    target = embedded.cache_dir() / "models" / "folders" / f"{source.stem}.bf16.{embedded.trusted_sha256(source)[:12]}"
    with embedded.locked(target.parent, target.name):
        if not (target / "config.json").is_file():
            with embedded.work_folder(target.parent, target.name) as work:
                progress(f"unpacking {source.name} for a Python engine", nan)
                _convert(source, work / target.name, python)
                (work / target.name).replace(target)
    return str(target)


def _convert(source: Path, target: Path, python: str) -> None:
    done = subprocess.run(
        [python, unpack.__file__, str(source), str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise TargetError(
            f"{source.name} could not be unpacked for a Python engine ({last[:200]}); that takes some packages: "
            f"{python} -m pip install transformers torch gguf accelerate; or give a model folder"
        )
