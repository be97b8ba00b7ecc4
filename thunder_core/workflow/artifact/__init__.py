"""Artifacts: folders with compiled programs. A folder is written atomically, and each byte is verified before use.

The names below are imported when they are first used. The modules that read an artifact's text (`manifest`, `read`,
`artifact_folder`) need neither PyTorch nor transformers. The modules that write and run programs (`write`, `saving`,
`loading`, `replay`) need both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder_core.foundation import plugins

if TYPE_CHECKING:
    from thunder_core.workflow.artifact.format.read import Artifact, open_artifact
    from thunder_core.workflow.artifact.loading import load
    from thunder_core.workflow.artifact.saving import save
    from thunder_core.workflow.artifact.write import write_artifact

HOMES = {
    "load": "loading",
    "save": "saving",
    "write_artifact": "write",
    "Artifact": "format.read",
    "open_artifact": "format.read",
}

__all__ = ["Artifact", "load", "open_artifact", "save", "write_artifact"]

__getattr__ = plugins.lazy_face(__name__, HOMES)
