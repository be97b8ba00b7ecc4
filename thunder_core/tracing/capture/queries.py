"""Queries of a program about its tensors whose answers do not follow from guards of the metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_core.foundation.errors import ThunderError
from thunder_core.tracing.capture.fakes.tensors import Tensors
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.capture.torch_facts.autograd_nodes import FROM_OUTSIDE
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.symbols import (
    BASE,
    CONSTANT_QUERIES,
    LASTING_QUERIES,
    OUTPUT_NUMBER,
    QUERY_EXPRESSIONS,
    REFERENCES,
    VERSION,
)


class Queries:
    """The record of a program's queries of tensors.

    `note_query(tensor, query, answer)` is called with each query of a real tensor and its answer. `refuse(what, fix)`
    returns the error for a query that cannot be traced.
    """

    def __init__(
        self,
        tensors: Tensors,
        sizes: SymbolicSizes | None,
        note_query: Callable[[torch.Tensor, str, object], None],
        refuse: Callable[[str, str], ThunderError],
    ) -> None:
        self._tensors = tensors
        self._sizes = sizes
        self._note_query = note_query
        self._refuse = refuse

    def constant_answer(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Record a query. Return the answer for a real tensor if no operation can change the answer, otherwise None."""
        if function in QUERY_EXPRESSIONS and self._tensors.is_outside(args[0]):
            answer = function(*args)
            self._note_query(args[0], QUERY_EXPRESSIONS[function], answer)
            is_kept = answer is True and QUERY_EXPRESSIONS[function] in LASTING_QUERIES
            if function == OUTPUT_NUMBER:
                is_kept = isinstance(self._tensors.fake(args[0]).grad_fn, FROM_OUTSIDE)
            if is_kept or QUERY_EXPRESSIONS[function] in CONSTANT_QUERIES:
                return answer
        if function in REFERENCES and self._tensors.is_outside(args[0]):
            self._guard_reference(function, args[0])
        elif function == BASE:
            self._guard_base_of_view(args[0])
        elif function == VERSION:
            self._query_versions(args[0])
        if function is torch.Tensor.storage_offset:
            self._query_offsets(args[0])
        if function is torch.Tensor.stride and self._sizes is not None and not self._tensors.is_outside(args[0]):
            self._sizes.reads_strides |= bool(self._sizes.sources)
        return None

    def _guard_reference(self, function: Callable[..., Any], tensor: torch.Tensor) -> None:
        """Guard that an outside tensor has no base or no hooks; refuse to read a base or hooks that exist."""
        name = REFERENCES[function]
        if function(tensor) is None:
            self._note_query(tensor, f"{name}.__class__.__name__", "NoneType")
        elif function(self._tensors.fake(tensor)) is None:
            raise self._refuse(
                f"the program reads `{name}` of a tensor from outside", "read it outside the compiled program"
            )

    def _guard_base_of_view(self, view: torch.Tensor) -> None:
        """Guard that the base of a computed view, if it is an outside tensor, is no view itself."""
        base = self._tensors.fake(view)._base
        if base is not None and self._tensors.is_outside(real := self._tensors.to_real(base)):
            self._guard_reference(BASE, real)

    def _query_versions(self, tensor: torch.Tensor) -> None:
        """Record a query of the versions of the inputs that share a tensor's memory, because views share them.

        Refuse the query after a write to an input that shares the memory, but perhaps not the version: views of one
        tensor share a version counter, but other tensors with the same memory do not.
        """
        fake = self._tensors.fake(tensor)
        outside = [(real, other) for real, other in self._tensors.outside_tensors() if not real.is_inference()]
        # fakes with symbolic sizes do not share memory
        memory = {memory_of(real) for real, other in outside if memory_of(other) == memory_of(fake)}
        sharing = [(real, other) for real, other in outside if memory_of(real) in memory]
        for real, sharing_fake in sharing:
            if sharing_fake is fake:
                continue
            self._note_query(real, QUERY_EXPRESSIONS[VERSION], real._version)
            if len(sharing) > 1 and sharing_fake is not fake._base and sharing_fake._version != real._version:
                raise self._refuse(
                    "the program reads the version of a tensor after a write to another input that shares its memory",
                    "read the version of the tensor that is written to, or pass only one of the two",
                )

    def _query_offsets(self, tensor: torch.Tensor) -> None:
        """Record queries of the offsets of the inputs that share a tensor's memory, because these determine the
        tensor's offset.
        """
        memory = memory_of(self._tensors.fake(tensor))
        for real, _ in self._tensors.inputs.values():
            if real.layout is torch.strided and memory_of(self._tensors.fake(real)) == memory:
                self._note_query(real, QUERY_EXPRESSIONS[torch.Tensor.storage_offset], real.storage_offset())
