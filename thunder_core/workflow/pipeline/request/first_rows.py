"""The first rows of a plan, from the request and the model's config file, before PyTorch is imported."""

from __future__ import annotations

from collections.abc import Iterator

from thunder_core.foundation.errors import ThunderError
from thunder_core.workflow.models.folder.foreign_formats import require_config
from thunder_core.workflow.models.folder.origin import find_local_folder
from thunder_core.workflow.models.request.request import ModelRequest


def first_rows(model: ModelRequest) -> Iterator[tuple[str, str]]:
    """Yield the rows of a plan that name the model; none for a sample, or a model that was not downloaded yet."""
    architectures = config_of(model).get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        yield "model", named_architecture(str(model.model), architectures[0])


def named_architecture(name: str, architecture: str) -> str:
    """Return a model's name and architecture, in words."""
    return f"{name} ({architecture})"


def config_of(model: ModelRequest) -> dict[str, object]:
    """Return the config of a model that is on this machine; empty for others."""
    if model.model is None:
        return {}
    try:
        folder = find_local_folder(model.model, model.revision)
        return {} if folder is None else require_config(folder)
    except ThunderError:  # the full plan raises this error later
        return {}
