"""A GGUF file and tokens in, the log-probabilities of its whole vocabulary at every position out.

llama.cpp's public C functions (llama.h) are called in the library that comes with xllamacpp. Its parameter structs are
passed as the library's own defaults with a few words changed; where they stand is found in those defaults, and what was
asked for is checked afterwards, so that a changed layout is an error and not a wrong number.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np

from dynamometer.errors import MissingExtra, TargetError, UsageError
from dynamometer.quality.divergence import Float32, log_softmax

_ROOM: Final = 1024  # bytes; the structs are some 180, and what a callee does not know of it does not read
CACHE_TYPES: Final = {"F16": 1, "Q8_0": 8, "Q4_0": 2}  # ggml type numbers
_CACHE_BITS: Final = {"F16": 16.0, "Q8_0": 8.5, "Q4_0": 4.5}


class _Params(ctypes.Structure):
    _fields_ = (("raw", ctypes.c_uint8 * _ROOM),)


class _Batch(ctypes.Structure):
    """llama_batch of llama.h."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SILENT = _LOG(lambda level, text, data: None)  # kept alive here: the library holds no reference
_POINTER, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
_SIGNATURES: Final = {
    "llama_model_default_params": ([], _Params),
    "llama_context_default_params": ([], _Params),
    "llama_model_load_from_file": ([_TEXT, _Params], _POINTER),
    "llama_init_from_model": ([_POINTER, _Params], _POINTER),
    "llama_model_get_vocab": ([_POINTER], _POINTER),
    "llama_vocab_n_tokens": ([_POINTER], _INT),
    "llama_tokenize": ([_POINTER, _TEXT, _INT, _POINTER, _INT, ctypes.c_bool, ctypes.c_bool], _INT),
    "llama_n_ctx": ([_POINTER], ctypes.c_uint32),
    "llama_n_batch": ([_POINTER], ctypes.c_uint32),
    "llama_set_n_threads": ([_POINTER, _INT, _INT], None),
    "llama_batch_init": ([_INT, _INT, _INT], _Batch),
    "llama_batch_free": ([_Batch], None),
    "llama_decode": ([_POINTER, _Batch], _INT),
    "llama_get_logits": ([_POINTER], ctypes.POINTER(ctypes.c_float)),
    "llama_get_memory": ([_POINTER], _POINTER),
    "llama_memory_clear": ([_POINTER, ctypes.c_bool], None),
    "llama_state_seq_get_size": ([_POINTER, _INT], ctypes.c_size_t),
    "llama_free": ([_POINTER], None),
    "llama_model_free": ([_POINTER], None),
}


@cache
def _library() -> ctypes.CDLL:
    found = find_spec("xllamacpp")
    folders = list(found.submodule_search_locations or ()) if found else []
    for path in sorted(path for folder in folders for path in Path(folder).glob("xllamacpp*.so")):
        library = ctypes.CDLL(str(path))
        if not all(hasattr(library, name) for name in _SIGNATURES):
            raise UsageError(f"{path.name} does not export llama.cpp's C functions; give URLs to compare instead")
        for name, (arguments, result) in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
        library.llama_log_set(_SILENT, None)
        library.llama_backend_init()
        return library
    raise MissingExtra("xllamacpp", "llamacpp")


class Reader:
    """A loaded model that reads along. Not thread-safe."""

    def __init__(self, file: Path, context: int, threads: int, cache_type: str = "F16") -> None:
        self._lib, self.file, self.context = _library(), file, context
        self._model = self._lib.llama_model_load_from_file(str(file).encode(), self._lib.llama_model_default_params())
        if not self._model:
            raise TargetError(f"llama.cpp cannot load {file}; is it a whole GGUF model that this version knows?")
        self._context = self._lib.llama_init_from_model(self._model, _parameters(self._lib, context, cache_type))
        if not self._context:
            self._lib.llama_model_free(self._model)
            raise TargetError(f"llama.cpp cannot make a context of {context} tokens with a {cache_type} cache")
        self._lib.llama_set_n_threads(self._context, threads, threads)
        self._vocab = self._lib.llama_model_get_vocab(self._model)
        self.vocabulary = int(self._lib.llama_vocab_n_tokens(self._vocab))
        if self._lib.llama_n_batch(self._context) < context or self._lib.llama_n_ctx(self._context) < context:
            self.close()
            raise UsageError("this version of xllamacpp keeps its parameters elsewhere; give URLs to compare instead")

    def tokens(self, text: str) -> list[int]:
        """The model's own tokens of a text, cut to the context."""
        raw = text.encode()
        room = (ctypes.c_int32 * (len(raw) + 8))()
        count = int(self._lib.llama_tokenize(self._vocab, raw, len(raw), room, len(room), True, True))
        return list(room[: min(count, self.context)])

    def log_probabilities(self, tokens: Sequence[int]) -> Float32:
        """[len(tokens), vocabulary]; row i is what the model expects after token i."""
        n = len(tokens)
        if not 1 <= n <= self.context:
            raise UsageError(f"{n} tokens do not fit a context of {self.context}")
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        batch = self._lib.llama_batch_init(n, 0, 1)
        try:
            for at, token in enumerate(tokens):
                batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = token, at, 1, 1
                batch.seq_id[at][0] = 0
            batch.n_tokens = n
            code = self._lib.llama_decode(self._context, batch)
        finally:
            self._lib.llama_batch_free(batch)
        if code:
            raise TargetError(f"llama.cpp could not read {n} tokens (code {code})")
        found = np.ctypeslib.as_array(self._lib.llama_get_logits(self._context), (n, self.vocabulary))
        return log_softmax(found.astype(np.float32, copy=True))

    def cache_bytes(self) -> int:
        """Bytes that the cache of what was read last takes, as the library would save it."""
        return int(self._lib.llama_state_seq_get_size(self._context, 0))

    def close(self) -> None:
        if self._context:
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = self._model = None


@contextmanager
def reader(file: Path, context: int, threads: int, cache_type: str = "F16") -> Iterator[Reader]:
    """A model for the length of a block. A cache type that did not take is an error, not a silent F16."""
    made = Reader(file, context, threads, cache_type)
    try:
        if cache_type != "F16":
            _check_cache(made, file, threads, cache_type)
        yield made
    finally:
        made.close()


def _check_cache(made: Reader, file: Path, threads: int, cache_type: str) -> None:
    """The saved cache of the same tokens must be smaller in the ratio of the bits."""
    plain = Reader(file, made.context, threads)
    try:
        tokens = made.tokens("one two three four five six seven eight " * 8)[: made.context]
        plain.log_probabilities(tokens)
        made.log_probabilities(tokens)
        ratio, wanted = made.cache_bytes() / plain.cache_bytes(), _CACHE_BITS[cache_type] / 16
    finally:
        plain.close()
    if abs(ratio - wanted) > 0.05:
        raise UsageError(f"a {cache_type} cache was asked for and one of {ratio:.0%} of F16 came, not {wanted:.0%}")


def _parameters(library: ctypes.CDLL, context: int, cache_type: str) -> _Params:
    """The defaults with context, batch and cache type changed. n_ctx, n_batch and n_ubatch come first in llama.h; the
    two cache types are the first pair of F16 (1, 1) behind the block of rope's floats."""
    made = library.llama_context_default_params()
    assert isinstance(made, _Params)
    struct.pack_into("<III", made.raw, 0, context, context, min(context, 512))
    if cache_type not in CACHE_TYPES:
        raise UsageError(f"cache type is {cache_type!r}; one of {', '.join(CACHE_TYPES)}")
    if cache_type != "F16":
        words = struct.unpack_from("<40i", bytes(made.raw), 0)
        at = next((at for at in range(20, 39) if words[at] == words[at + 1] == 1), None)
        if at is None:
            raise UsageError("this version of xllamacpp keeps its cache types elsewhere; leave --cache-types out")
        struct.pack_into("<ii", made.raw, 4 * at, CACHE_TYPES[cache_type], CACHE_TYPES[cache_type])
    return made
