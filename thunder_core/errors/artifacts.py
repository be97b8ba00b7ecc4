"""Errors of exit status 6: an artifact was rejected, and nothing of it was used."""

from __future__ import annotations

from thunder_core.errors.tree import ArtifactError


class NotAnArtifact(ArtifactError):
    """The folder holds no readable `manifest.json` of Thunder."""

    code = "TH0601"


class ArtifactDamaged(ArtifactError):
    """A file of the artifact is missing, has another digest than the manifest says, or lies outside the folder.

    `thunder verify` refuses an artifact whose folder has a file that the manifest does not list, too.
    """

    code = "TH0602"


class ArtifactTooNew(ArtifactError):
    """The artifact's schema is newer than this version of Thunder can read."""

    code = "TH0603"


class ArtifactForeign(ArtifactError):
    """The artifact was made for another model, other code, another version of PyTorch, or another machine.

    Of machines it tells the device, the system, the family of processors and the version of Python that compiled
    regions need, and the CPU's instruction sets that they use; the message names what is lacking.
    """

    code = "TH0604"


class ImportRefused(ArtifactError):
    """The artifact refers to an object of a module that nobody trusts, so that the module was not imported.

    Importing runs a module's code. For an artifact that is done only with PyTorch, transformers and what they import,
    Thunder and its plug-ins, where these were installed (or where `PYTHONPATH` leads), with the packages of the classes
    of the model (or of the function) that is loaded, and with what the user names:
    `load(..., trusted_modules=("package",))`, or `--trust-module package`.
    """

    code = "TH0605"


class BadSignature(ArtifactError):
    """The artifact has a signature that does not hold: it is of something else, or is damaged.

    A signature is of the manifest's last line, the digest that covers all files. What changes an artifact, as
    `thunder validate` does for one whose validation was pending, takes its signatures away; it has to be signed anew.
    """

    code = "TH0606"


class NotSigned(ArtifactError):
    """A signature was required, and the artifact has none by a key that is trusted.

    Trusted are the keys that were named, by `trusted_keys` or `--key`, or else those of the user's own list, which
    `thunder keys trust FILE` adds to and `thunder keys list` shows.
    """

    code = "TH0607"
