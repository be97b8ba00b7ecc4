"""Artifacts are signed, and a signature that is not valid is refused."""

from __future__ import annotations

import base64
import json
import os
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
    message_of,
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


def test_signing_loses_no_signatures_of_a_later_version(signed, key):
    later = json.loads((signed / "signature.json").read_text()) | {"schema_version": 2}
    (signed / "signature.json").write_text(json.dumps(later))
    with pytest.raises(BadSignature):
        sign(signed, key)
    assert json.loads((signed / "signature.json").read_text()) == later
