"""Signatures of artifacts: signers are listed without loading the artifact, and invalid signatures are refused."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.artifact.damages import reseal
from thunder_core.foundation.errors import (
    ArtifactDamaged,
    BadKey,
    BadSignature,
    NotSigned,
    OutOfDisk,
    OutputExists,
    OutputNotWritable,
    UnsignedWarning,
)
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.signature import (
    is_signed,
    message_of,
    require_authentic,
    sign_folder,
    signers_of,
)
from thunder_core.workflow.artifact.trust import keys, public_keys
from thunder_core.workflow.artifact.trust.consent import Consent
from thunder_core.workflow.artifact.trust.keys import new_key_pair, public_path, read_private_key, read_public_keys
from thunder_core.workflow.artifact.trust.public_keys import parse_line, trusted_file, trusted_list, write_trusted


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch) -> Path:
    """The folder for the user's list of trusted keys, which does not exist yet."""
    monkeypatch.setenv("THUNDER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("THUNDER_KEY_PASSPHRASE", raising=False)
    return tmp_path / "config"


@pytest.fixture
def key(tmp_path) -> Path:
    """A private key with its public key."""
    new_key_pair(tmp_path / "mine", "me")
    return tmp_path / "mine"


@pytest.fixture
def signed(artifact, key) -> Path:
    sign(artifact, key)
    return artifact


def sign(folder: Path, key: Path):
    return sign_folder(folder, open_artifact(folder).manifest, read_private_key(key), key.name)


# ---- keys -----------------------------------------------------------------------------------------------------


def test_a_private_key_is_its_users_alone(key):
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    public = public_path(key).read_text()
    assert public.startswith("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI")
    assert public.endswith(" me\n")
    assert read_public_keys(public_path(key)) == (parse_line(public),)


def test_no_file_is_written_over(key):
    content = key.read_bytes()
    with pytest.raises(OutputExists):
        new_key_pair(key)
    key.unlink()
    with pytest.raises(OutputExists):  # refused for the public file, because the private key would be lost
        new_key_pair(key)
    assert not key.exists()
    assert content
    with pytest.raises(OutputNotWritable):
        new_key_pair(key / "no" / "folder")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")
def test_openssh_reads_ours_and_its_keys_sign(artifact, key, tmp_path):
    told = subprocess.run(["ssh-keygen", "-lf", public_path(key)], capture_output=True, text=True, check=True).stdout
    (public,) = read_public_keys(public_path(key))
    assert public.fingerprint in told
    theirs = tmp_path / "theirs"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "them", "-f", theirs], check=True)
    assert sign(artifact, theirs) in read_public_keys(public_path(theirs))


def test_a_fingerprint_matches_openssh():
    """The key is from the examples of RFC 8410 (section 10.1)."""
    raw = bytes.fromhex("19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1")
    key = public_keys.PublicKey(raw, "example")
    assert parse_line(key.line) == key
    assert key.text == "AAAAC3NzaC1lZDI1NTE5AAAAIBm/RAlphM3+hUG6wWfcO5bIUIaqMLa2ywxcOK1wMWbh"
    assert str(key).startswith("SHA256:")
    assert str(key).endswith("(example)")


PEM = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
"""


def test_a_public_key_in_pem(tmp_path):
    (tmp_path / "key.pem").write_text(PEM)
    (key,) = read_public_keys(tmp_path / "key.pem")
    assert key.raw.hex().startswith("19bf44096984cdfe")


def test_a_passphrase_protects_a_key(tmp_path, artifact, monkeypatch):
    monkeypatch.setenv("THUNDER_KEY_PASSPHRASE", "a secret")
    new_key_pair(tmp_path / "mine")
    assert b"ENCRYPTED" in (tmp_path / "mine").read_bytes()
    sign(artifact, tmp_path / "mine")
    for wrong in ("", "another"):
        monkeypatch.setenv("THUNDER_KEY_PASSPHRASE", wrong)
        with pytest.raises(BadKey, match="cannot be read as a private key") as refused:
            sign(artifact, tmp_path / "mine")
        assert "THUNDER_KEY_PASSPHRASE" in refused.value.fix


def test_a_private_key_that_others_can_read_is_not_used(artifact, key):
    key.chmod(0o640)
    with pytest.raises(BadKey, match="other users can read"):
        sign(artifact, key)
    assert not is_signed(artifact)


NO_KEYS = {
    "nothing": b"",
    "text": b"hello\n",
    "another kind": b"ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ== me\n",
    "half a key": b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBm/RAlphM3 me\n",
    "no base64": b"ssh-ed25519 ???? me\n",
    "no text": b"\xff\xfe\x00",
    "damaged PEM": b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    "huge": b"#" * (2 << 20),
}


@pytest.mark.parametrize("kind", NO_KEYS)
def test_files_that_hold_no_key_are_refused(kind, tmp_path, artifact):
    (tmp_path / "key").write_bytes(NO_KEYS[kind])
    (tmp_path / "key").chmod(0o600)
    for read in (read_public_keys, read_private_key):
        with pytest.raises(BadKey):
            read(tmp_path / "key")


def test_private_and_public_keys_are_distinguished(key):
    with pytest.raises(BadKey, match="is a private key"):
        read_public_keys(key)
    for mode in (0o600, 0o644):
        public_path(key).chmod(mode)
        with pytest.raises(BadKey, match="is a public key"):
            read_private_key(public_path(key))
    with pytest.raises(BadKey, match="nowhere does not exist"):
        read_private_key(key.with_name("nowhere"))


# ---- signing and verifying ------------------------------------------------------------------------------------


def test_signing_changes_no_other_file(artifact, key):
    before = {path: path.read_bytes() for path in artifact.rglob("*") if path.is_file()}
    signer = sign(artifact, key)
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in artifact.iterdir()} - {path.name for path in before} == {"traces", "signature.json"}
    assert signers_of(open_artifact(artifact)) == (signer,)
    assert (signer,) == read_public_keys(public_path(key))


def test_signed_message_is_a_version_and_the_digest(artifact):
    manifest = open_artifact(artifact).manifest
    assert message_of(manifest) == b"thunder artifact signature 1\0" + manifest.digest.encode()
    assert manifest.digest in (artifact / "manifest.json").read_text().splitlines()[-2]


def test_several_keys_sign_one_artifact(signed, key, tmp_path):
    other = new_key_pair(tmp_path / "other")
    sign(signed, tmp_path / "other")
    sign(signed, key)  # sign again with the same key, which replaces the first signature
    assert signers_of(open_artifact(signed)) == (other, *read_public_keys(public_path(key)))


def test_a_change_that_is_sealed_again_is_not_signed(signed, model):
    reseal(signed, recipe="another")
    opened = open_artifact(signed)  # the digests alone are valid
    with pytest.raises(BadSignature, match="the signature or the manifest has been changed"):
        signers_of(opened)
    with pytest.raises(BadSignature):
        thunder.load(signed, model)


def test_signing_again_drops_invalid_signatures(signed, key, tmp_path):
    reseal(signed, recipe="another")
    other = new_key_pair(tmp_path / "other")
    sign(signed, tmp_path / "other")
    assert signers_of(open_artifact(signed)) == (other,)


def test_damage_of_a_signed_artifact_is_reported_as_damage(signed, model):
    (path,) = signed.glob("traces/0/prologue-*.py")
    path.write_text(path.read_text() + "\n")
    with pytest.raises(ArtifactDamaged):
        thunder.load(signed, model)


def of_another(folder: Path) -> None:
    """A signature by the same key for another context or another artifact."""
    content = json.loads((folder / "signature.json").read_text())
    one = base64.b64decode(content["signatures"][0]["signature"])
    content["signatures"][0]["signature"] = base64.b64encode(bytes([one[0] ^ 1]) + one[1:]).decode()
    (folder / "signature.json").write_text(json.dumps(content))


def change(**changes: object):
    def damage(folder: Path) -> None:
        content = json.loads((folder / "signature.json").read_text())
        (folder / "signature.json").write_text(json.dumps({**content, **changes}))

    return damage


def become(content: bytes):
    return lambda folder: (folder / "signature.json").write_bytes(content)


def replaced(make):
    def damage(folder: Path) -> None:
        path = folder / "signature.json"
        path.rename(folder.parent / "elsewhere.json")
        make(path, folder.parent / "elsewhere.json")

    return damage


BAD = {
    "a bit": of_another,
    "no signatures": change(signatures=[]),
    "another version": change(schema_version=2),
    "a key more": change(signed=True),
    "a signature of nothing": change(signatures=[{"key": "", "signature": ""}]),
    "no base64": change(signatures=[{"key": "?", "signature": "?"}]),
    "words": change(signatures="signed"),
    "nothing": become(b""),
    "no JSON": become(b"signed"),
    "nesting": become(b"[" * 60_000),
    "a number": become(b"9" * 6_000),
    "huge": become(b" " * 100_000),
    "no text": become(b"\xff\xfe"),
    "a link": replaced(lambda path, elsewhere: path.symlink_to(elsewhere)),
    "a link to nowhere": replaced(lambda path, elsewhere: path.symlink_to("nowhere")),
    "a pipe": replaced(lambda path, elsewhere: os.mkfifo(path)),
    "a folder": replaced(lambda path, elsewhere: path.mkdir()),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_signature_that_does_not_hold_is_refused(kind, signed, model):
    BAD[kind](signed)
    with pytest.raises(BadSignature) as refused:
        thunder.load(signed, model)
    assert "is not valid: " in refused.value.what
    with pytest.raises(BadSignature):
        require_authentic(open_artifact(signed), Consent())


# ---- trust ----------------------------------------------------------------------------------------------------


def silent(folder, model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return thunder.load(folder, model, **options)


def test_loading_without_a_list_of_keys_does_not_warn(artifact, signed, model, x, config):
    assert torch.equal(silent(signed, model)(x), model(x))
    (signed / "signature.json").unlink()
    assert torch.equal(silent(signed, model)(x), model(x))
    assert not config.exists()


def test_loading_with_a_list_of_keys_warns_of_unknown_signers(signed, model, x, key, tmp_path):
    write_trusted([new_key_pair(tmp_path / "other")])
    with pytest.warns(
        UnsignedWarning, match=r"is signed by SHA256:.* \(calls itself mine\), which is not a trusted key"
    ):
        assert torch.equal(thunder.load(signed, model)(x), model(x))
    (signed / "signature.json").unlink()
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


def test_comment_of_a_key_cannot_fake_a_line(artifact, key):
    sign_folder(
        artifact, open_artifact(artifact).manifest, read_private_key(key), "me\nsignature  SHA256:x, trusted\x1b[2J"
    )
    (signer,) = signers_of(open_artifact(artifact))
    assert signer.comment == "me signature SHA256:x, trusted\\x1b[2J"


def test_a_signature_alone_is_no_trust(signed, model):
    with pytest.raises(NotSigned, match="which is not a trusted key") as refused:
        thunder.load(signed, model, require_signature=True)
    assert "thunder keys trust" in refused.value.fix


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


def test_half_a_key_is_not_left_behind(tmp_path, monkeypatch):
    fdopen = os.fdopen

    def full(descriptor, mode):
        file = fdopen(descriptor, mode)
        file.write(b"half")
        file.flush()
        file.close()
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(keys.os, "fdopen", full)
    with pytest.raises(OutOfDisk, match="mine was not written"):
        new_key_pair(tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


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


def test_saving_signs_at_once(model, x, key, tmp_path):
    compiled = thunder.jit(model)
    compiled(x)
    folder = thunder.save(compiled, tmp_path / "signed.thunder", sign_key=key)
    silent(folder, model, trusted_keys=[public_path(key)], require_signature=True)
    with pytest.raises(BadKey):
        thunder.save(compiled, tmp_path / "not.thunder", sign_key=tmp_path / "nowhere")
    assert not (tmp_path / "not.thunder").exists()


def test_a_signed_artifact_may_be_replaced(signed, model, x):
    compiled = thunder.jit(model)
    compiled(x)
    thunder.save(compiled, signed, force=True)
    assert not is_signed(signed)


def test_cryptography_is_not_imported_without_signatures(artifact):
    code = (
        "import sys; from tests.artifact.conftest import build; import thunder_core, thunder_cli.main\n"
        f"thunder_core.load({str(artifact)!r}, build()); thunder_cli.main.main(['verify', {str(artifact)!r}])\n"
        "assert 'cryptography' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_signer_is_named_by_the_comment_in_the_list_of_trusted_keys(signed, key):
    forged = json.loads((signed / "signature.json").read_text())
    forged["signatures"][0]["comment"] = "Alice (release)"
    (signed / "signature.json").write_text(json.dumps(forged))
    trusted = iter(read_public_keys(public_path(key)))  # an iterator, which can be read once
    consent = Consent(trusted_keys=(public.line for public in trusted))
    for _ in range(2):
        (signer,) = require_authentic(open_artifact(signed), consent)
        assert signer.comment == "me"
    with pytest.raises(NotSigned, match=r"SHA256:\S+ \(calls itself Alice"):
        require_authentic(open_artifact(signed), Consent(trusted_keys=(), require_signature=True))


def test_signing_loses_no_signatures_of_a_later_version(signed, key):
    later = json.loads((signed / "signature.json").read_text()) | {"schema_version": 2}
    (signed / "signature.json").write_text(json.dumps(later))
    with pytest.raises(BadSignature):
        sign(signed, key)
    assert json.loads((signed / "signature.json").read_text()) == later


def test_a_comment_of_any_length_can_be_read_again(artifact, key):
    sign_folder(artifact, open_artifact(artifact).manifest, read_private_key(key), "x" * 100_000)
    assert len(signers_of(open_artifact(artifact))[0].comment) <= 120
