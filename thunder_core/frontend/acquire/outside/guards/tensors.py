"""Guards on tensors: their metadata, the answers to queries, and the storages and hooks of several tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.foundation.quick_objects import with_quick_init
from thunder_core.frontend.acquire.outside.guards.guard import Guard, GuardScope, exact_type_condition
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.ir.literal import LibraryFunction, literal, sizes_before_counts
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.library.overlap import shared_storages

DEVICES: dict[torch.device, torch.device] = {}  # one object for each device, so that a prologue has one name for it
ACCUMULATE_WITHOUT_HOOKS = LibraryFunction(
    "thunder_core.tracing.library.changes.node_hooks", "accumulate_without_hooks"
)
SHARED_STORAGES = LibraryFunction("thunder_core.tracing.library.overlap", "shared_storages")


@with_quick_init
@dataclass(frozen=True, eq=False)
class TensorMetadata(Guard):
    """Requires a tensor of this class, with the proxy's metadata and this layout."""

    kind: type
    proxy: TensorProxy
    layout: torch.layout

    def condition(self, subject: str, scope: GuardScope) -> str:
        proxy, is_dense = self.proxy, self.layout is torch.strided
        parts = [
            exact_type_condition(subject, self.kind, scope),
            f"{subject}.dtype is {literal(proxy.dtype, scope)}",
            f"{subject}.shape == {literal(sizes_before_counts(proxy.shape), scope)}",
            f"{subject}.stride() == {literal(sizes_before_counts(proxy.stride), scope)}"
            if is_dense
            else f"{subject}.layout is {self.layout}",
            f"{subject}.device == {scope.constant(DEVICES.setdefault(proxy.device, proxy.device), 'device')}",
            f"{subject}.requires_grad is {proxy.requires_grad}",
            *([f"{subject}.is_conj() is {proxy.is_conj}"] if proxy.dtype.is_complex else []),
            f"{subject}.is_neg() is {proxy.is_neg}",
        ]
        return " and ".join(parts)

    @property
    def words(self) -> str:
        return f"was {self.proxy.described}"


@dataclass(frozen=True, eq=False)
class SparseTensorMetadata(TensorMetadata):
    """Requires a tensor of a layout without strides, such as a sparse tensor."""

    @property
    def words(self) -> str:
        return f"was {self.proxy.described} in layout {self.layout}"


@dataclass(frozen=True, eq=False)
class HasFact(Guard):
    """Requires the answer to a query, such as `storage_offset()`, that is not part of a tensor's metadata."""

    query: str
    answer: object

    @property
    def key(self) -> tuple[Any, ...]:
        return (HasFact, self.path, self.query)

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{subject}.{self.query} == {literal(self.answer, scope)}"

    @property
    def words(self) -> str:
        return f"{self.query} was {self.answer}"


@dataclass(frozen=True, eq=False)
class OfTensors(Guard):
    """Requires a property of several tensors together. A program has one guard of each class, for all tensors."""

    rest: tuple[Path, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return (type(self),)

    @property
    def other_paths(self) -> tuple[Path, ...]:
        return self.rest

    def _operands(self, subject: str, scope: GuardScope) -> str:
        return ", ".join([subject, *(scope.variables[path] for path in self.rest)])


@dataclass(frozen=True, eq=False)
class NoAccumulationHooks(OfTensors):
    """Requires leaves whose gradient accumulation nodes have no hooks."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.function(ACCUMULATE_WITHOUT_HOOKS)}({self._operands(subject, scope)})"

    @property
    def words(self) -> str:
        return "accumulated a gradient without hooks of its node"


@dataclass(frozen=True, eq=False)
class SharesStorage(OfTensors):
    """Requires that a storage is shared by the same tensors as while tracing."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        expected = shared_storages(*(path.value for path in (self.path, *self.rest)))
        return f"{scope.function(SHARED_STORAGES)}({self._operands(subject, scope)}) == {literal(expected, scope)}"

    @property
    def words(self) -> str:
        return "shared its storage with the same tensors"
