"""Errors of exit status 6: an artifact was rejected, and no part of it was used."""

from __future__ import annotations

from thunder_core.foundation.errors.tree import ArtifactError


class NotAnArtifact(ArtifactError):
    """The folder has no readable Thunder manifest (`manifest.json`).

    Name the folder that `thunder optimize` wrote, not a folder above it. If the folder is a model's folder, use the
    commands `thunder optimize`, `thunder bench` or `thunder debug`, which take a model.
    """

    code = "TH0601"


class ArtifactDamaged(ArtifactError):
    """A file of the artifact is missing, lies outside the folder, or does not match its digest in the manifest.

    Copy the artifact again, or make it again with `thunder optimize`. `thunder verify` and `thunder sign` also refuse
    an artifact whose folder has a file that the manifest does not list: move this file elsewhere.
    """

    code = "TH0602"


class ArtifactTooNew(ArtifactError):
    """The artifact's schema is newer than this version of Thunder can read.

    Install the version of Thunder that wrote the artifact, or a later one (`pip install --upgrade
    thunder-optimize`), or make the artifact again with this version.
    """

    code = "TH0603"


class ArtifactForeign(ArtifactError):
    """The artifact was made for another model, other code, another version of PyTorch, or another machine.

    Of the machine, Thunder checks the device, the operating system, the processor family, and the Python version and
    the CPU instruction sets that the compiled regions need. The message names the fact that differs. Load the artifact
    with the model, the versions and a machine like those it was made for, or make it again with `thunder optimize`
    here.
    """

    code = "TH0604"


class ImportRefused(ArtifactError):
    """The artifact refers to an object in a module that is not trusted, so Thunder did not import the module.

    Importing a module runs its code. While an artifact is loaded, Thunder imports only these modules, from where they
    were installed or from `PYTHONPATH`:

    - PyTorch, transformers and the packages that they import;
    - Thunder and its plug-ins;
    - the packages of the classes of the model (or of the function) that is being loaded;
    - modules that the user names: `load(..., trusted_modules=("package",))`, or `--trust-module package`.
    """

    code = "TH0605"


class BadSignature(ArtifactError):
    """A signature of the artifact is not valid: it was made for other contents, or it is damaged.

    A signature signs the manifest, which has the digests of all files. When Thunder changes an artifact, it removes the
    signatures; sign the artifact again. For example, `thunder validate` changes an artifact that has not been validated
    before. Signatures of Thunder 0.2.0 (`signature.json`) have another format, which is no longer verified: sign the
    artifact again with `thunder sign`. A signature by `ssh-keygen -Y sign` must be by an Ed25519 key, and for the
    namespace `thunder-artifact`.
    """

    code = "TH0606"


class NotSigned(ArtifactError):
    """A signature was required, and no trusted key has signed the artifact.

    The argument `trusted_keys` or the option `--key` names the trusted keys. Without it, the keys in the user's list
    are trusted. `thunder keys trust FILE` adds a key to this list, and `thunder keys list` shows the list.
    """

    code = "TH0607"


class ArtifactTooOld(ArtifactError):
    """An earlier version of Thunder wrote the artifact, in a schema that this version no longer reads.

    Make the artifact again with this version, or install the version of Thunder that wrote it.
    """

    code = "TH0608"
