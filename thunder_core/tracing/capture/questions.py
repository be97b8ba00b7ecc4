"""Questions of a program about its tensors whose answers guards of the metadata do not settle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_core.foundation.errors import ThunderError
from thunder_core.tracing.capture.fakes.tensors import Tensors
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.symbols import FACTS, LASTING, VERSION


class Questions:
    """Notes what a program asks of tensors: `asked` is told what real ones were asked for, and what they answered.

    `refuse(what, fix)` makes the error for what is not traced.
    """

    def __init__(
        self,
        tensors: Tensors,
        sizes: SymbolicSizes | None,
        asked: Callable[[torch.Tensor, str, object], None],
        refuse: Callable[[str, str], ThunderError],
    ) -> None:
        self._tensors = tensors
        self._sizes = sizes
        self._asked = asked
        self._refuse = refuse

    def lasting_answer(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Note a question; the answer of a real tensor where nothing in the program changes it, and else None."""
        if function in FACTS and self._tensors.is_outside(args[0]):
            answer = function(*args)
            self._asked(args[0], FACTS[function], answer)
            if function == VERSION:
                self._require_own_version(args[0])
            if FACTS[function] in LASTING:
                return answer
        if function is torch.Tensor.storage_offset:
            self._ask_offsets(args[0])
        if function is torch.Tensor.stride and self._sizes is not None and not self._tensors.is_outside(args[0]):
            self._sizes.asks_strides |= bool(self._sizes.sources)
        return None

    def _require_own_version(self, tensor: torch.Tensor) -> None:
        """Refuse to tell an input's version once another input in the same memory has been written to.

        Views of one tensor share a counter of versions, and tensors that otherwise lie in the same memory do not.
        """
        for real, _ in self._tensors.inputs.values():
            if real is tensor or real.is_inference() or memory_of(real) != memory_of(tensor):
                continue
            if self._tensors.fake(real)._version != real._version:
                raise self._refuse(
                    "the program reads the version of a tensor after a write to another input that shares its memory",
                    "read the version of the tensor that is written to, or pass only one of the two",
                )

    def _ask_offsets(self, tensor: torch.Tensor) -> None:
        """Ask for the storage offsets of the inputs in whose memory a tensor lies: its own follows from them."""
        memory = memory_of(self._tensors.fake(tensor))
        for real, _ in self._tensors.inputs.values():
            if real.layout is torch.strided and memory_of(self._tensors.fake(real)) == memory:
                self._asked(real, FACTS[torch.Tensor.storage_offset], real.storage_offset())
