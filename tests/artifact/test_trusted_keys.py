"""The list of trusted keys decides which signed artifacts load without a warning."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.artifact.signing import silent
from thunder_core.foundation.errors import (
    BadKey,
    NotSigned,
    UnsignedWarning,
)
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.signature import (
    require_authentic,
)
from thunder_core.workflow.artifact.trust.consent import Consent
from thunder_core.workflow.artifact.trust.keys import new_key_pair, public_path, read_public_keys
from thunder_core.workflow.artifact.trust.public_keys import trusted_file, trusted_list, write_trusted

pytestmark = pytest.mark.usefixtures("config")


def test_loading_without_a_list_of_keys_does_not_warn(artifact, signed, model, x, config):
    assert torch.equal(silent(signed, model)(x), model(x))
    (signed / "manifest.json.sig").unlink()
    assert torch.equal(silent(signed, model)(x), model(x))
    assert not config.exists()


def test_loading_with_a_list_of_keys_warns_of_unknown_signers(signed, model, x, key, tmp_path):
    write_trusted([new_key_pair(tmp_path / "other")])
    with pytest.warns(UnsignedWarning, match=r"is signed by SHA256:\S+, which is not a trusted key"):
        assert torch.equal(thunder.load(signed, model)(x), model(x))
    (signed / "manifest.json.sig").unlink()
    with pytest.warns(UnsignedWarning, match="is not signed"):
        assert torch.equal(thunder.load(signed, model)(x), model(x))
    with pytest.raises(NotSigned, match="is not signed"):
        thunder.load(signed, model, require_signature=True)


def test_artifact_signed_by_a_trusted_key_loads_without_a_warning(signed, model, key, tmp_path):
    other = new_key_pair(tmp_path / "other")
    write_trusted([other, *read_public_keys(public_path(key))])
    silent(signed, model)
    silent(signed, model, require_signature=True)


def test_named_keys_replace_the_list_of_trusted_keys(signed, model, key, tmp_path):
    mine, other = str(public_path(key)), new_key_pair(tmp_path / "other")
    silent(signed, model, trusted_keys=[mine], require_signature=True)
    silent(signed, model, trusted_keys=mine, require_signature=True)
    silent(signed, model, trusted_keys=[other.line, Path(mine).read_text()], require_signature=True)
    write_trusted(read_public_keys(public_path(key)))
    for trusted in ([other.line], [tmp_path / "other.pub"], []):
        with pytest.raises(NotSigned):
            thunder.load(signed, model, trusted_keys=trusted, require_signature=True)
    with pytest.raises(BadKey):
        thunder.load(signed, model, trusted_keys=[tmp_path / "nowhere.pub"])


def test_the_list_is_a_file_for_people(key, config):
    (mine,) = read_public_keys(public_path(key))
    assert trusted_list() == ()
    assert write_trusted([mine, mine]) == trusted_file() == config / "trusted_keys"
    assert trusted_file().read_text().splitlines()[1:] == [mine.line]
    assert stat.S_IMODE(trusted_file().stat().st_mode) == 0o600
    trusted_file().write_text(f"\n# mine\n  {mine.line}  \n\n")
    assert trusted_list() == (mine,)


def test_a_list_of_keys_has_the_same_encoding_in_every_locale(key, monkeypatch):
    write_text = Path.write_text

    def latin(self, text, encoding="latin-1"):  # as if the locale had this encoding
        return write_text(self, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", latin)
    (mine,) = read_public_keys(public_path(key))
    write_trusted([replace(mine, comment="Jörg")])
    assert [entry.comment for entry in trusted_list()] == ["Jörg"]


def test_a_list_in_a_folder_that_cannot_be_is_refused_with_its_reason(key, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("THUNDER_CONFIG_DIR", str(tmp_path / "file" / "folder"))
    with pytest.raises(BadKey, match="cannot be written: Not a directory"):
        write_trusted(read_public_keys(public_path(key)))


def test_a_list_of_keys_that_is_damaged_or_writable_by_others_is_refused(signed, model, key, config):
    write_trusted(read_public_keys(public_path(key)))
    trusted_file().write_text("ssh-ed25519 AAAA\n")
    with pytest.raises(BadKey, match=r"line 1 of .*trusted_keys"):
        thunder.load(signed, model)
    trusted_file().write_text("")
    for path in (trusted_file(), config):
        mode = path.stat().st_mode
        path.chmod(0o777)
        with pytest.raises(BadKey, match="can be written by other users"):
            thunder.load(signed, model)
        path.chmod(mode)


def test_signer_is_named_by_the_comment_in_the_list_of_trusted_keys(signed, key):
    trusted = iter(read_public_keys(public_path(key)))  # an iterator, which can be read once
    consent = Consent(trusted_keys=(public.line for public in trusted))
    for _ in range(2):
        (signer,) = require_authentic(open_artifact(signed), consent)
        assert signer.comment == "me"
    with pytest.raises(NotSigned, match=r"SHA256:\S+, which"):
        require_authentic(open_artifact(signed), Consent(trusted_keys=(), require_signature=True))
