"""`thunder keys`, `thunder sign` and `thunder verify`, and the signature options of other commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives import serialization

import thunder_core
from tests.artifact.tiny import build
from tests.cli.small import QUICK


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("THUNDER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("THUNDER_KEY_PASSPHRASE", raising=False)
    return tmp_path / "config"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    compiled = thunder_core.jit(build())
    compiled(torch.ones(3, 4))
    return thunder_core.save(compiled, tmp_path_factory.mktemp("artifacts") / "tiny.thunder")


def test_a_key_is_forgotten_by_its_name_or_its_file(thunder, here):
    """The comment of a new key is the name of its private file, which contains no public key."""
    made = thunder("keys", "new", "alice", "--json").json
    thunder("keys", "trust", "alice.pub")
    assert thunder("keys", "forget", "alice").status == 0
    thunder("keys", "trust", "alice.pub")
    assert thunder("keys", "forget", "alice.pub").status == 0
    assert made["fingerprint"] not in thunder("keys").out
    assert "private key" in thunder("keys", "forget", "alice").err


@pytest.mark.parametrize("content", ["team.pub", "other.pub", "pem"])
def test_a_public_key_in_place_of_the_private_key_is_named(thunder, artifact, here, content):
    thunder("keys", "new", "team")
    public = serialization.load_ssh_public_key((here / "team.pub").read_bytes())
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    file = here / content
    file.write_bytes(pem if content == "pem" else (here / "team.pub").read_bytes())
    done = thunder("sign", artifact, "--key", file)
    assert done.status == 2
    assert f"TH0220 {file} is a public key" in done.err
    assert ("private key, such as" in done.err) and "chmod" not in done.err


@pytest.fixture
def artifact(written, here) -> Path:
    return Path(shutil.copytree(written, here / "tiny.thunder"))


@pytest.mark.parametrize(("content", "reason"), [(None, "Not a directory"), (b"\xff", "it is not UTF-8 text")])
def test_a_list_that_cannot_be_read_is_explained(thunder, here, config, monkeypatch, content, reason):
    if content is None:
        (here / "file").touch()
        monkeypatch.setenv("THUNDER_CONFIG_DIR", str(here / "file"))
    else:
        config.mkdir(mode=0o700)
        (config / "trusted_keys").write_bytes(content)
    done = thunder("keys", "list", "--json")
    assert (done.status, done.json["error"]["code"]) == (2, "TH0220")
    assert done.json["error"]["what"].endswith(f"trusted_keys cannot be read: {reason}")
    assert "set THUNDER_CONFIG_DIR" in done.json["error"]["fix"]


def test_from_a_new_key_to_trust(thunder, artifact, here):
    made = thunder("keys", "new", "team", "--comment", "the  team", "--json").json
    assert made["key"] == (here / "team.pub").read_text().strip()
    assert made["key"].endswith(" the team")
    assert thunder("keys", "new", "team").status == 2

    assert thunder("verify", artifact, "--json").json["signatures"] == []
    signed = thunder("sign", artifact, "--key", "team")
    assert (signed.status, signed.err) == (0, "")
    assert made["fingerprint"] in signed.out

    found = thunder("verify", artifact, "--json")
    assert found.status == 0
    (one,) = found.json["signatures"]
    assert (one["fingerprint"], one["trusted"], found.json["trusted"]) == (made["fingerprint"], False, False)
    assert "not a trusted key" in thunder("verify", artifact).out
    assert thunder("verify", artifact, "--require-signature").status == 6
    assert thunder("verify", artifact, "--key", "team.pub").status == 0

    assert "1 trusted key in" in thunder("keys", "trust", "team.pub").out
    trusted = thunder("verify", artifact, "--require-signature")
    assert trusted.status == 0
    assert "(the team), trusted" in trusted.out  # the user's name of the key, whatever name the artifact gives
    assert thunder("keys", "list", "--json").json["keys"][0]["comment"] == "the team"
    assert thunder("keys", "forget", "the tean").status == 2
    assert thunder("keys", "forget", "").status == 2
    assert thunder("keys", "forget", made["fingerprint"]).status == 0
    assert thunder("keys", "--json").json["keys"] == []
    assert thunder("verify", artifact, "--require-signature").status == 6


def test_verify_reports_the_compared_files(thunder, artifact):
    done = thunder("verify", artifact)
    assert (done.status, done.err) == (0, "")
    assert "all match the manifest" in done.out
    assert "signature  none" in done.out
    seal = thunder("verify", artifact, "--json").json["seal"]
    assert seal in (artifact / "manifest.json").read_text()


def test_verify_refuses(thunder, artifact, here):
    thunder("keys", "new", "mine")
    thunder("keys", "new", "other")
    nowhere, private = ("--key", "nowhere"), ("--key", "mine")
    for arguments, code in ((("--key", "mine.pub"), "TH0607"), (nowhere, "TH0220"), (private, "TH0220")):
        done = thunder("verify", artifact, *arguments)
        assert code in done.err
        assert done.status == (6 if code == "TH0607" else 2)
    thunder("sign", artifact, "--key", "mine")
    assert thunder("verify", artifact, "--key", "other.pub").status == 6
    assert thunder("verify", artifact, "--key", "other.pub", "--key", "mine.pub").status == 0
    text = (artifact / "manifest.json.sig").read_text()
    (artifact / "manifest.json.sig").write_text(text.replace("\n", "\nAAAA", 1))
    done = thunder("verify", artifact)
    assert (done.status, done.out) == (6, "")
    assert "TH0606" in done.err
    (artifact / "traces" / "0").rename(here / "gone")
    assert "TH0602" in thunder("verify", artifact, "--json").out
    assert "TH0602" in thunder("sign", artifact, "--key", "mine").err
    assert "TH0601" in thunder("verify", here).err


def test_signature_of_optimize_holds_until_the_artifact_changes(thunder, llama, here):
    for name in ("mine", "other"):
        thunder("keys", "new", name)
    run = ("optimize", llama, "-r", "hf-transformers", "-o", "signed", *QUICK, "--no-validate", "--no-benchmark")
    refused = thunder(*run, "--sign-key", "mine.pub")
    assert (refused.status, "TH0220" in refused.err) == (2, True)
    assert not (here / "signed").exists()
    assert thunder(*run, "--sign-key", "mine").status == 0
    assert thunder("verify", "signed", "--key", "mine.pub").status == 0

    for command in (("validate", "signed"), ("bench", "signed", "--seq", 8, "--runs", 2, "--warmup", 0)):
        done = thunder(*command, "--key", "other.pub", "--require-signature")
        assert (done.status, "TH0607" in done.err) == (6, True)
    thunder("keys", "trust", "other.pub")
    done = thunder("validate", "signed", "--no-write", "--validate-inputs", 1)
    assert done.status == 0, done.err
    assert "warning" in done.err
    assert "which is not a trusted key" in done.err
    done = thunder("validate", "signed", "--validate-inputs", 1, "--key", "mine.pub", "--require-signature")
    assert "warning" not in done.err
    assert "sign it again" in done.out
    assert thunder("verify", "signed", "--json").json["signatures"] == []


def test_options_for_artifacts_are_refused_for_models(thunder, llama):
    done = thunder("bench", llama, "--require-signature", "--trust-module", "mine")
    assert done.status == 2
    assert "--trust-module, --require-signature need an artifact" in done.err
