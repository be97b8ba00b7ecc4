"""The first rows of a plan, which the request and the model's config file tell before PyTorch is imported."""

from __future__ import annotations

from collections.abc import Iterator

from thunder_core.foundation.errors import ThunderError
from thunder_core.workflow.models.folder.foreign_formats import require_config
from thunder_core.workflow.models.folder.origin import folder_here
from thunder_core.workflow.models.request.request import ModelRequest


def first_rows(model: ModelRequest) -> Iterator[tuple[str, str]]:
    """Yield the rows of a plan that name the model; none for a sample, and for a model that was not downloaded yet."""
    architectures = config_of(model).get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        yield "model", named_architecture(str(model.model), architectures[0])


def named_architecture(name: str, architecture: str) -> str:
    """A model by its name and its architecture, in words."""
    return f"{name} ({architecture})"


def config_of(model: ModelRequest) -> dict[str, object]:
    """The config of a model that is on this machine; empty for others."""
    if model.model is None:
        return {}
    try:
        folder = folder_here(model.model, model.revision)
        return {} if folder is None else require_config(folder)
    except ThunderError:  # the full plan raises this error later
        return {}
