"""Artifacts are signed, and a signature that is not valid is refused."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import thunder_core as thunder
from tests.artifact.damages import reseal
from tests.artifact.signing import sign, silent
from thunder_core.foundation.errors import (
    ArtifactDamaged,
    BadKey,
    BadSignature,
    NotSigned,
)
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.signature import (
    is_signed,
    require_authentic,
    signers_of,
)
from thunder_core.workflow.artifact.trust.consent import Consent
from thunder_core.workflow.artifact.trust.keys import new_key_pair, public_path, read_public_keys

pytestmark = pytest.mark.usefixtures("config")


def test_signing_changes_no_other_file(artifact, key):
    before = {path: path.read_bytes() for path in artifact.rglob("*") if path.is_file()}
    signer = sign(artifact, key)
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in artifact.iterdir()} - {path.name for path in before} == {
        "traces",
        "manifest.json.sig",
    }
    assert signers_of(open_artifact(artifact)) == (signer,)
    assert (signer,) == read_public_keys(public_path(key))


def test_several_keys_sign_one_artifact(signed, key, tmp_path):
    other = new_key_pair(tmp_path / "other")
    sign(signed, tmp_path / "other")
    sign(signed, key)  # sign again with the same key, which replaces the first signature
    assert signers_of(open_artifact(signed)) == (*read_public_keys(public_path(key)), other)


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


SIGNATURE = "manifest.json.sig"


def other_bytes(place: int):
    """Change one byte of the binary signature."""

    def damage(folder: Path) -> None:
        begin, *lines, end = (folder / SIGNATURE).read_text().splitlines()
        blob = bytearray(base64.b64decode("".join(lines)))
        blob[place] ^= 1
        (folder / SIGNATURE).write_text(f"{begin}\n{base64.b64encode(blob).decode()}\n{end}\n")

    return damage


def change(old: str, new: str):
    def damage(folder: Path) -> None:
        text = (folder / SIGNATURE).read_text()
        assert old in text
        (folder / SIGNATURE).write_text(text.replace(old, new))

    return damage


def become(content: bytes):
    return lambda folder: (folder / SIGNATURE).write_bytes(content)


def replaced(make):
    def damage(folder: Path) -> None:
        path = folder / SIGNATURE
        path.rename(folder.parent / "elsewhere.sig")
        make(path, folder.parent / "elsewhere.sig")

    return damage


BAD = {
    "a bit": other_bytes(-1),
    "another key": other_bytes(40),
    "another version": other_bytes(9),
    "another namespace": other_bytes(70),
    "no signature": become(b"-----BEGIN SSH SIGNATURE-----\n-----END SSH SIGNATURE-----\n"),
    "no base64": become(b"-----BEGIN SSH SIGNATURE-----\nAAAAA\n-----END SSH SIGNATURE-----\n"),
    "text after it": change("END SSH SIGNATURE-----\n", "END SSH SIGNATURE-----\nand more\n"),
    "text before it": change("-----BEGIN", "more\n-----BEGIN"),
    "no end": change("-----END SSH SIGNATURE-----", ""),
    "words": become(b"signed"),
    "nothing": become(b""),
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


def test_a_signature_alone_is_no_trust(signed, model):
    with pytest.raises(NotSigned, match="which is not a trusted key") as refused:
        thunder.load(signed, model, require_signature=True)
    assert "thunder keys trust" in refused.value.fix


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
        "import sys; from tests.artifact.tiny import build; import thunder_core, thunder_cli.main\n"
        f"thunder_core.load({str(artifact)!r}, build()); thunder_cli.main.main(['verify', {str(artifact)!r}])\n"
        "assert 'cryptography' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_signing_loses_no_signatures_of_other_types(signed, key):
    other_bytes(9)(signed)
    before = (signed / SIGNATURE).read_bytes()
    with pytest.raises(BadSignature):
        sign(signed, key)
    assert (signed / SIGNATURE).read_bytes() == before


def test_signatures_in_the_format_of_0_2_0_are_refused_with_advice(artifact, model, key):
    (artifact / "signature.json").write_text('{"schema_version": 1, "signatures": []}')
    for folder in (artifact, sign_then_add_former(artifact, key)):
        with pytest.raises(BadSignature, match="former format of Thunder") as refused:
            thunder.load(folder, model)
        assert "sign it again with `thunder sign`; or delete signature.json" in refused.value.fix
    signer = sign(artifact, key)
    assert not (artifact / "signature.json").exists()
    assert signers_of(open_artifact(artifact)) == (signer,)


def sign_then_add_former(artifact: Path, key: Path) -> Path:
    sign(artifact, key)
    (artifact / "signature.json").write_text("")
    return artifact


def ssh_keygen(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ssh-keygen", *map(str, arguments)], capture_output=True, check=False, **options)


needs_openssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")
FOR_ARTIFACTS = ("-n", "thunder-artifact")


@needs_openssh
def test_openssh_verifies_a_signature_of_thunder(signed, key, tmp_path):
    (tmp_path / "allowed_signers").write_text(f"me@here {public_path(key).read_text()}")
    known = ("-f", tmp_path / "allowed_signers", "-I", "me@here", "-s", signed / SIGNATURE)
    manifest = (signed / "manifest.json").read_bytes()
    verified = ssh_keygen("-Y", "verify", *FOR_ARTIFACTS, *known, input=manifest)
    assert verified.returncode == 0, verified.stderr
    assert b'Good "thunder-artifact" signature for me@here with ED25519 key SHA256:' in verified.stdout
    assert ssh_keygen("-Y", "verify", *FOR_ARTIFACTS, *known, input=manifest + b" ").returncode != 0


@needs_openssh
@pytest.mark.parametrize("options", [(), ("-O", "hashalg=sha256")], ids=["sha512", "sha256"])
def test_thunder_verifies_a_signature_of_openssh(artifact, model, tmp_path, options):
    assert ssh_keygen("-q", "-t", "ed25519", "-N", "", "-C", "them", "-f", tmp_path / "theirs").returncode == 0
    signed = ssh_keygen("-Y", "sign", *FOR_ARTIFACTS, "-f", tmp_path / "theirs", *options, artifact / "manifest.json")
    assert signed.returncode == 0, signed.stderr
    silent(artifact, model, trusted_keys=[tmp_path / "theirs.pub"], require_signature=True)
    reseal(artifact, recipe="another")
    with pytest.raises(BadSignature, match="has been changed"):
        signers_of(open_artifact(artifact))


@needs_openssh
def test_openssh_signs_with_a_key_of_thunder_and_prints_the_same_text(artifact, key):
    assert ssh_keygen("-Y", "sign", *FOR_ARTIFACTS, "-f", key, artifact / "manifest.json").returncode == 0
    theirs = (artifact / SIGNATURE).read_bytes()
    sign(artifact, key)
    assert (artifact / SIGNATURE).read_bytes() == theirs  # Ed25519 signatures have no random part


@needs_openssh
@pytest.mark.parametrize(
    ("kind", "namespace", "reason"),
    [("ecdsa", "thunder-artifact", "not by a ssh-ed25519 key"), ("ed25519", "file", "namespace thunder-artifact")],
)
def test_other_signatures_of_openssh_are_refused(artifact, tmp_path, kind, namespace, reason):
    ssh_keygen("-q", "-t", kind, "-N", "", "-f", tmp_path / "theirs")
    ssh_keygen("-Y", "sign", "-n", namespace, "-f", tmp_path / "theirs", artifact / "manifest.json")
    with pytest.raises(BadSignature, match=reason):
        signers_of(open_artifact(artifact))
