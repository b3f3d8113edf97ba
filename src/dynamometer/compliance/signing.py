"""A folder of weights and a key in, an OpenSSF model signature out; a signature in, whether it holds out.

The format is that of OpenSSF model-signing (a Sigstore bundle over a manifest of hashes), so its own tool reads what
this writes and the other way round.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Final, cast

from dynamometer.errors import GateFailed, MissingPath, UsageError
from dynamometer.plugins import optional

NAME: Final = "model.sig"


def _library(part: str) -> ModuleType:
    return cast(ModuleType, optional(f"model_signing.{part}", "signing"))


def _hashing(folder: Path, signature: Path) -> object:
    """What is signed: every file but the signature itself and git's own."""
    config = _library("hashing").Config()
    # a relative path to ignore would be taken from inside the folder
    return config.set_ignored_paths(paths=[signature.resolve()], ignore_git_paths=True).set_allow_symlinks(True)


def _there(*paths: Path) -> None:
    for path in paths:
        if not path.exists():
            raise MissingPath(f"{path} is not there; give the folder, the key and the signature that exist")


def sign(folder: Path, signature: Path, key: Path, password: str | None = None) -> None:
    """Signs with an elliptic-curve private key (PEM)."""
    _there(folder, key)
    config = _library("signing").Config().set_hashing_config(_hashing(folder, signature))
    try:
        config.use_elliptic_key_signer(private_key=key, password=password).sign(folder.resolve(), signature.resolve())
    except (ValueError, TypeError) as wrong:
        raise UsageError(
            f"{key} cannot sign ({_line(wrong)}); give an EC private key in PEM, P-256, P-384 or P-521"
        ) from wrong


def verify_key(folder: Path, signature: Path, key: Path) -> None:
    """Raises GateFailed when the signature is not of this key over these files."""
    _there(folder, signature, key)
    config = _library("verifying").Config().set_hashing_config(_hashing(folder, signature))
    try:
        ready = config.use_elliptic_key_verifier(public_key=key)
    except (ValueError, TypeError) as wrong:
        raise UsageError(f"{key} is no public key ({_line(wrong)}); give an EC public key in PEM") from wrong
    _run(ready, folder, signature)


def verify_identity(folder: Path, signature: Path, identity: str, issuer: str) -> None:
    """Keyless Sigstore: the signer's identity and who vouched for it. Needs the network for the trust root."""
    _there(folder, signature)
    config = _library("verifying").Config().set_hashing_config(_hashing(folder, signature))
    _run(config.use_sigstore_verifier(identity=identity, oidc_issuer=issuer), folder, signature)


def verify_certificate(folder: Path, signature: Path, chain: tuple[Path, ...]) -> None:
    """A certificate that one of the given authorities issued."""
    _there(folder, signature, *chain)
    config = _library("verifying").Config().set_hashing_config(_hashing(folder, signature))
    _run(config.use_certificate_verifier(certificate_chain=list(chain)), folder, signature)


def _run(config: object, folder: Path, signature: Path) -> None:
    try:
        cast(ModuleType, config).verify(folder.resolve(), signature.resolve())
    except Exception as wrong:  # the library raises ValueError, its dependencies their own errors
        raise GateFailed(
            f"{signature} does not hold for {folder}: {_line(wrong)}; do not load these weights"
        ) from wrong


def _line(wrong: Exception) -> str:
    """The library's message in one line, without the digests that it prints in full."""
    text = " ".join(str(wrong).split())
    changed = re.findall(r"Hash mismatch for \\?'(.+?)\\?': Expected", text)
    if changed:
        return f"changed since: {', '.join(changed[:8])}"
    return text[:300] or type(wrong).__name__
