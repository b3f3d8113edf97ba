"""Manifests, pickles, bills of materials and signatures, with real files and the real libraries."""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from dynamometer.cli import dyno
from dynamometer.compliance import bom, find, inventory, pickles
from dynamometer.compliance.parts import parts
from dynamometer.errors import GateFailed, RecordError, UsageError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model's folder: card, config, one safetensors shard."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    header = msgspec.json.encode({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    (folder / "sub" / "a b.txt").write_text("one")
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (folder / "README.md").write_text(
        "---\nlicense: apache-2.0\nbase_model: deepseek-ai/DeepSeek-V3\n"
        "datasets:\n- HuggingFaceFW/fineweb\n- acme/own\n---\n"
    )
    return folder


def verb(*args: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(dyno, ["provenance", *map(str, args)])
    wrong = result.exception
    return (
        result.exit_code if wrong is None or isinstance(wrong, SystemExit) else getattr(wrong, "exit_code", -1)
    ), result.output


def test_a_manifest_holds_the_sha256_of_every_file(model: Path) -> None:
    made = inventory.create(model, model / "provenance.json")
    assert {one.path for one in made.files} == {"README.md", "config.json", "model.safetensors", "sub/a b.txt"}
    one = next(one for one in made.files if one.path == "sub/a b.txt")
    assert (one.bytes, one.sha256) == (3, hashlib.sha256(b"one").hexdigest())
    assert inventory.read(model / "provenance.json") == made
    assert inventory.verify(made, model, model / "provenance.json") == ()


def test_each_kind_of_change_is_told(model: Path) -> None:
    made = inventory.create(model, model / "provenance.json")
    (model / "sub" / "a b.txt").write_text("two")  # same size
    (model / "config.json").write_text("{}")
    (model / "README.md").unlink()
    (model / "new.bin").write_bytes(b"x")
    told = {(one.what, one.path) for one in inventory.verify(made, model, model / "provenance.json")}
    assert told == {
        ("changed", "sub/a b.txt"),
        ("changed", "config.json"),
        ("missing", "README.md"),
        ("added", "new.bin"),
    }


def test_an_interrupted_run_goes_on_where_it_stopped(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    real = inventory.file_sha256

    def failing(path: Path) -> str:
        hashed.append(path.name)
        if len(hashed) == 3:
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(inventory, "file_sha256", failing)
    with pytest.raises(KeyboardInterrupt):
        inventory.create(model, model / "provenance.json", jobs=1)
    first = list(hashed)
    made = inventory.create(model, model / "provenance.json", jobs=1)
    again = set(hashed[len(first) :])
    assert len(set(first) - again) == 2  # the two that were finished are not read again
    assert inventory.verify(made, model, model / "provenance.json") == ()
    assert not list(model.glob(".*partial"))


def test_an_interrupted_check_goes_on_where_it_stopped(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = model / "provenance.json"
    made = inventory.create(model, place)
    (model / "sub" / "a b.txt").write_text("two")
    hashed: list[str] = []
    real = inventory.file_sha256

    def failing(path: Path) -> str:
        hashed.append(path.name)
        if len(hashed) == 3:
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(inventory, "file_sha256", failing)
    with pytest.raises(KeyboardInterrupt):
        inventory.verify(made, model, place, jobs=1)
    assert [one.path for one in inventory.verify(made, model, place, jobs=1)] == ["sub/a b.txt"]
    assert [hashed.count(name) for name in hashed[:2]] == [1, 1]  # the two that were finished are not read again
    assert not list(model.glob(".*verifying"))


def test_a_file_that_changed_since_the_interruption_is_hashed_again(model: Path) -> None:
    out = model / "provenance.json"
    path = model / "config.json"
    stale = {"path": "config.json", "bytes": 2, "mtime_ns": path.stat().st_mtime_ns, "sha256": "0" * 64}
    out.with_name(".provenance.json.partial").write_bytes(msgspec.json.encode(stale) + b"\n{torn")
    made = inventory.create(model, out)
    assert "0" * 64 not in {one.sha256 for one in made.files}


def test_lines_of_sha256sum_are_written_and_read(model: Path, tmp_path: Path) -> None:
    sums = tmp_path / "SHA256SUMS"
    made = inventory.create(model, sums)
    assert sums.read_text().splitlines()[0] == f"{made.files[0].sha256}  {made.files[0].path}"
    assert inventory.verify(inventory.read(sums), model, sums) == ()
    (model / "sub" / "a b.txt").write_text("longer than before")
    assert [one.what for one in inventory.verify(inventory.read(sums), model, sums)] == ["changed"]


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b"])
def test_a_manifest_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    entries = (inventory.Entry(name, 1, "0" * 64),)
    path = tmp_path / "m.json"
    path.write_bytes(
        msgspec.json.encode(inventory.Inventory(name="x", files=entries, digest=inventory.digest(entries)))
    )
    with pytest.raises(UsageError, match="leaves the folder"):
        inventory.read(path)


def test_a_manifest_changed_by_hand_does_not_add_up(model: Path) -> None:
    path = model / "provenance.json"
    inventory.create(model, path)
    path.write_text(path.read_text().replace('"bytes": 3', '"bytes": 4'))
    with pytest.raises(UsageError, match="own digest"):
        inventory.read(path)


def test_a_moved_file_is_renamed_not_lost(model: Path, tmp_path: Path) -> None:
    before = inventory.create(model, tmp_path / "a.json")
    (model / "sub" / "a b.txt").rename(model / "c.txt")
    after = inventory.create(model, tmp_path / "b.json")
    assert [(one.what, one.path, one.detail) for one in inventory.compare(before, after)] == [
        ("renamed", "sub/a b.txt", "to c.txt")
    ]


class _Shell:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("false",)


def test_a_pickle_that_would_run_a_command_is_dangerous_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "weights.data").write_bytes(pickle.dumps(_Shell()))
    (one,) = pickles.scan(tmp_path)
    assert (one.format, one.risk) == ("pickle", "dangerous")
    assert "system" in one.imports[0]


def test_plain_data_in_a_pickle_is_still_told_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": [1]}))
    np.save(tmp_path / "b.npy", np.zeros(2))
    assert {one.path: one.risk for one in pickles.scan(tmp_path)} == {"a.pkl": "pickle", "b.npy": "none"}


def test_safetensors_is_preferred_and_a_torn_one_is_damaged(model: Path) -> None:
    (model / "torn.safetensors").write_bytes(b"xx")
    risks = {one.path: one.risk for one in pickles.scan(model)}
    assert risks == {"model.safetensors": "none", "torn.safetensors": "damaged"}
    assert verb("scan", model)[0] == 1


def test_the_bill_is_valid_cyclonedx_and_names_card_files_bases_and_data(model: Path) -> None:
    made = inventory.create(model, model / "provenance.json")
    card = find.resolve(str(model), online=False)[0]
    document = bom.bill(card, parts(card, {}, online=False), made, model)
    text = bom.text_of(document)
    bom.validate(text)
    table = msgspec.json.decode(text)
    component = table["metadata"]["component"]
    assert component["type"] == "machine-learning-model"
    assert component["modelCard"]["modelParameters"]["modelArchitecture"] == "LlamaForCausalLM"
    assert component["pedigree"]["ancestors"][0]["name"] == "DeepSeek-V3"
    hashes = {one["name"]: one["hashes"][0]["content"] for one in table["components"] if one["type"] == "file"}
    assert hashes == {one.path: one.sha256 for one in made.files}
    assert {one["name"]: one["licenses"][0]["license"] for one in table["components"] if one["type"] == "data"} == {
        "HuggingFaceFW/fineweb": {"id": "ODC-By-1.0", "url": "https://spdx.org/licenses/ODC-By-1.0.html"},
        "acme/own": {"name": "unknown"},
    }


def test_the_schema_refuses_a_bill_that_is_not_one() -> None:
    with pytest.raises(RecordError, match="CycloneDX"):
        bom.validate('{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": 3}')


def _keys(folder: Path) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / "key.pem", folder / "key.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the signing library's own imports
def test_a_signature_holds_until_a_file_changes_or_the_key_is_another(model: Path, tmp_path: Path) -> None:
    from dynamometer.compliance import signing

    private, public = _keys(tmp_path)
    (tmp_path / "other").mkdir()
    _, stranger = _keys(tmp_path / "other")
    signature = model / signing.NAME
    signing.sign(model, signature, private)
    signing.verify_key(model, signature, public)
    with pytest.raises(GateFailed, match="does not hold"):
        signing.verify_key(model, signature, stranger)
    (model / "config.json").write_text("{}")
    with pytest.raises(GateFailed, match=r"changed since: config\.json"):
        signing.verify_key(model, signature, public)


def test_the_verbs_make_verify_and_fail_by_exit_code(model: Path) -> None:
    assert verb("create", model)[0] == 0
    assert verb("verify", model)[0] == 0
    (model / "extra").write_text("x")
    assert verb("verify", model)[0] == 1
    assert verb("verify", model, "--allow-added")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("create", "nowhere"),
        ("verify", "nowhere"),
        ("diff", "a", "b"),
        ("scan", "nowhere"),
        ("check-signature", "."),
        ("sign", ".", "--key", "nowhere"),
    ],
)
def test_bad_input_is_a_usage_error(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert verb(*words)[0] == 2


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no files"):
        inventory.create(tmp_path, tmp_path / "provenance.json")
