"""The shelves of the zoo: a module for each library except transformers, whose models are subjects with inputs."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

TRANSFORMERS = "transformers"
# The package of each shelf; `SUBJECTS` has the title of each shelf's table.
PACKAGES: Mapping[str, str] = {
    TRANSFORMERS: "transformers",
    "timm": "timm",
    "diffusers": "diffusers",
    "gnn": "torch_geometric",
}
SUBJECTS: Mapping[str, str] = {
    TRANSFORMERS: "model types of transformers",
    "timm": "architectures of timm",
    "diffusers": "models of diffusers",
    "gnn": "graph layers of torch_geometric",
}


@dataclass(frozen=True)
class Subject:
    """A model, and the function that returns its keyword arguments for a size.

    If there are several sizes, they are also compared with symbolic values.
    """

    model: torch.nn.Module
    inputs: Callable[[int], dict[str, Any]]
    sizes: Sequence[int] = (2,)


class Shelf(Protocol):
    """A module of this package."""

    def types(self) -> list[str]:
        """The names of the subjects."""

    def subject(self, name: str) -> Subject:
        """The subject with a name, with random weights."""


def is_installed(shelf: str) -> bool:
    """Whether the package of a shelf is installed."""
    return importlib.util.find_spec(PACKAGES[shelf]) is not None


def types_of(shelf: str) -> list[str]:
    """The types of a shelf other than that of transformers, such as `timm:resnet10t`."""
    return [f"{shelf}:{name}" for name in _module(shelf).types()]


def shelf_of(name: str) -> str:
    """The shelf of a type."""
    return name.partition(":")[0] if ":" in name else TRANSFORMERS


def subject_of(name: str) -> Subject:
    """The subject of a type of a shelf other than that of transformers."""
    shelf, _, own_name = name.partition(":")
    return _module(shelf).subject(own_name)


def _module(shelf: str) -> Shelf:
    return cast(Shelf, importlib.import_module(f"{__name__}.{shelf}_shelf"))
