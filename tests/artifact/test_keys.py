"""Files of signing keys: their permissions and formats, and passphrases."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess

import pytest

from tests.artifact.signing import sign
from thunder_core.foundation.errors import (
    BadKey,
    OutOfDisk,
    OutputExists,
    OutputNotWritable,
)
from thunder_core.workflow.artifact.format.signature import is_signed
from thunder_core.workflow.artifact.trust import keys, public_keys
from thunder_core.workflow.artifact.trust.keys import new_key_pair, public_path, read_private_key, read_public_keys
from thunder_core.workflow.artifact.trust.public_keys import parse_line

pytestmark = pytest.mark.usefixtures("config")


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
    assert b"ENCRYPTED PRIVATE KEY" in (tmp_path / "mine").read_bytes()
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


def test_comment_of_a_key_cannot_fake_a_line(tmp_path):
    new_key_pair(tmp_path / "mine", "me signature  SHA256:x, trusted\x1b[2J" + "x" * 100_000)
    (public,) = read_public_keys(tmp_path / "mine.pub")
    assert public.comment.startswith("me signature SHA256:x, trusted\\x1b[2J")
    assert len(public.comment) == 120


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
