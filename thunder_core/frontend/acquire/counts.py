"""Counts, such as the number of nonzero elements of a tensor, which the prologue computes from inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from thunder_core.foundation.errors import SourceLine
from thunder_core.frontend.acquire.codegen.shared_operations import WrittenOperations
from thunder_core.frontend.acquire.outside.outside import Outside
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.capture.quantities import TENSOR, Quantity
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.ir.literal import Code
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy
from thunder_core.tracing.ir.sizes import symbols_of, text_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.tracing.library.tensor_guards import BASE_TENSOR_CLASSES


@dataclass(frozen=True, eq=False)
class Count:
    """An integer that a tensor determines, such as its number of nonzero elements.

    `text` identifies the count in each recording of the program. `bsyms` compute the tensor. `inputs` maps names of
    inputs of the bound symbols to paths, and `symbols` maps symbols to the paths of their values. `memory` maps names
    of tensors to the identities of their storages. Expressions of sizes are not simplified by constraints, because a
    simplified expression may contain the count itself.
    """

    text: str
    quantity: Quantity
    bsyms: tuple[BoundSymbol, ...]
    tensor: Proxy
    inputs: Mapping[str, Path]
    symbols: Mapping[sympy.Basic, Path]
    memory: Mapping[str, int | None]

    @property
    def sources(self) -> tuple[Path, ...]:
        """The paths of the inputs and of the values of the symbols."""
        return (*self.inputs.values(), *self.symbols.values())

    @property
    def names(self) -> set[str]:
        """The names that the bound symbols define."""
        return {proxy.name for bsym in self.bsyms for proxy in bsym.defines}

    def bsyms_with(self, variable: Callable[[Path], str], written: WrittenOperations) -> Iterable[BoundSymbol]:
        """Yield the bound symbols that the prologue must run for this count, with the prologue's names for inputs and
        symbols.

        `written` has the bound symbols that the prologue already runs.
        """
        for bsym in written.add(self.bsyms, self.memory):
            args, kwargs = replace_leaves(
                (bsym.args, dict(bsym.kwargs)), lambda leaf: self._with_variable(leaf, variable)
            )
            yield replace(bsym, args=args, kwargs=kwargs, subsymbols=(), source=None, module="")

    def expression(self, variable: Callable[[Path], str]) -> Code:
        """Return the expression that computes the count, after the prologue has run the bound symbols."""
        tensor = self._with_variable(self.tensor, variable)
        tensor = tensor if isinstance(tensor, Code) else Code(tensor.name, (tensor,))
        return Code(self.quantity.expression.format(tensor.text), tensor.reads)

    def _with_variable(self, leaf: object, variable: Callable[[Path], str]) -> Any:
        if isinstance(leaf, NumberProxy) and isinstance(leaf.value, torch.SymInt):
            names = {symbol: variable(self.symbols[symbol]) for symbol in symbols_of(leaf.value.node._expr)}
            return Code(text_of(leaf.value.node._expr, names), tuple(map(Proxy, names.values())))
        if isinstance(leaf, TensorProxy) and leaf.requires_grad and leaf.name in self.inputs:
            name = variable(self.inputs[leaf.name])
            return Code(f"{name}.detach()", (Proxy(name),))
        if isinstance(leaf, Proxy) and leaf.name in self.inputs:
            return replace(leaf, name=variable(self.inputs[leaf.name]))
        return leaf


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is strided, and its class does not override operations."""
    return type(tensor) in BASE_TENSOR_CLASSES and tensor.layout is torch.strided


@dataclass
class CountSources:
    """The sources of the counts of one recording.

    `observed` maps the texts of counts to their values. `outside` provides the paths of inputs, and `line()` returns
    the current line of the program.
    """

    outside: Outside
    recorder: Recorder
    line: Callable[[], SourceLine | None]
    observed: dict[str, int] = field(default_factory=dict)

    def __call__(self, quantity: Quantity, bsyms: Sequence[BoundSymbol], tensor: Proxy, value: Any) -> Path | None:
        """Return the path of a count; None if the count is constant, or depends on a tensor without a path."""
        text = self._text(quantity)
        if quantity is not TENSOR:
            self.observed[text] = value
        defined = {proxy.name for bsym in bsyms for proxy in bsym.defines}
        read = [proxy for bsym in bsyms for proxy in bsym.inputs if proxy.name not in defined]
        paths = self._paths([proxy for proxy in (*read, tensor) if proxy.name not in defined])
        if paths is None or not (paths[0] or paths[1]):
            return None
        names = {proxy.name for bsym in bsyms for proxy in (*bsym.inputs, *bsym.defines)}
        memory = {name: self.recorder.tensors.memory_of_name(name) for name in names}
        key = Count(text, quantity, tuple(bsyms), tensor, *paths, memory)
        path = Path(key.sources[0], "count", key, value)
        return path if quantity is TENSOR or self.outside.symbolic.includes_count(text, value) else None

    def _text(self, quantity: Quantity) -> str:
        """Return a string that identifies a count, and that is the same in each recording of the program."""
        where = f"{quantity.description} at {self.line()}"
        number = sum(text == where or text.startswith(f"{where} (") for text in self.observed)
        return where if not number else f"{where} ({number + 1})"

    def _paths(self, proxies: Iterable[Proxy]) -> tuple[dict[str, Path], dict[sympy.Basic, Path]] | None:
        """Return the paths of inputs by name and of the values of symbols; None if a proxy has no path."""
        recorder = self.recorder
        reals = {proxy.name: real for real, proxy in recorder.inputs.values() if is_plain(real)}
        inputs: dict[str, Path] = {}
        symbols: dict[sympy.Basic, Path] = {}
        for proxy in proxies:
            if isinstance(proxy, NumberProxy) and isinstance(proxy.value, torch.SymInt):
                if recorder.sizes is None:
                    return None
                symbols.update(
                    {symbol: recorder.sizes.sources[symbol] for symbol in symbols_of(proxy.value.node._expr)}
                )
                continue
            number = recorder.numbers.from_outside.get(proxy.name)
            path = number.source if number is not None else None
            if proxy.name in reals:
                path = self.outside.path_of(reals[proxy.name])
            if path is None:
                return None
            inputs[proxy.name] = path
        return inputs, symbols
