"""Sources of counts: how the prologue computes, from inputs, how many elements of a tensor are not zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from thunder_core.foundation.errors import SourceLine
from thunder_core.frontend.acquire.outside.outside import Outside
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.capture.quantities import Quantity
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.ir.literal import Code
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy
from thunder_core.tracing.ir.sizes import symbols_of, text_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.tracing.library.tensor_guards import PLAIN


@dataclass(frozen=True, eq=False)
class Count:
    """An integer that a tensor tells, as the count of its elements that are not zero, and the `bsyms` that make it.

    `inputs` has the paths to these by their names, and `symbols` those to the values of symbols. Expressions are those
    from before any constraint: what these imply may be written with the count itself.
    """

    text: str
    quantity: Quantity
    bsyms: tuple[BoundSymbol, ...]
    tensor: Proxy
    inputs: Mapping[str, Path]
    symbols: Mapping[sympy.Basic, Path]

    @property
    def sources(self) -> tuple[Path, ...]:
        """All of the paths."""
        return (*self.inputs.values(), *self.symbols.values())

    @property
    def names(self) -> set[str]:
        """The names that the bound symbols define."""
        return {proxy.name for bsym in self.bsyms for proxy in bsym.defines}

    def bsyms_with(self, variable: Callable[[Path], str], written: set[int]) -> Iterable[BoundSymbol]:
        """The bound symbols with the prologue's variables for inputs and symbols, but for those that it has `written`.

        Counts that need the same bound symbol share it.
        """
        for bsym in self.bsyms:
            if id(bsym) in written:
                continue
            written.add(id(bsym))
            args, kwargs = replace_leaves(
                (bsym.args, dict(bsym.kwargs)), lambda leaf: self._with_variable(leaf, variable)
            )
            yield replace(bsym, args=args, kwargs=kwargs, subsymbols=(), source=None, module="")

    def expression(self, variable: Callable[[Path], str]) -> str:
        """The text of the count, after these bound symbols."""
        tensor = self._with_variable(self.tensor, variable)
        return self.quantity.text.format(tensor.text if isinstance(tensor, Code) else tensor.name)

    def _with_variable(self, leaf: Any, variable: Callable[[Path], str]) -> Any:
        if isinstance(leaf, NumberProxy) and isinstance(leaf.value, torch.SymInt):
            names = {symbol: variable(self.symbols[symbol]) for symbol in symbols_of(leaf.value.node._expr)}
            return Code(text_of(leaf.value.node._expr, names))
        if isinstance(leaf, TensorProxy) and leaf.requires_grad and leaf.name in self.inputs:
            return Code(f"{variable(self.inputs[leaf.name])}.detach()")
        if isinstance(leaf, Proxy) and leaf.name in self.inputs:
            return replace(leaf, name=variable(self.inputs[leaf.name]))
        return leaf


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether operations on a tensor run no code of a class of its own, and its elements have strides."""
    return type(tensor) in PLAIN and tensor.layout is torch.strided


@dataclass
class CountSources:
    """The sources of the counts of one recording, and the values of those that were `observed`, by their texts.

    `outside` has the paths to inputs, and `line()` is the program's line.
    """

    outside: Outside
    recorder: Recorder
    line: Callable[[], SourceLine | None]
    observed: dict[str, int] = field(default_factory=dict)

    def __call__(self, quantity: Quantity, bsyms: Sequence[BoundSymbol], tensor: Proxy, value: int) -> Path | None:
        """The path to a count; None where it is a constant of the program, as one that has a tensor without a path."""
        text = self._text(quantity)
        self.observed[text] = value
        made = {proxy.name for bsym in bsyms for proxy in bsym.defines}
        read = [proxy for bsym in bsyms for proxy in bsym.inputs if proxy.name not in made]
        paths = self._paths([proxy for proxy in (*read, tensor) if proxy.name not in made])
        if paths is None or not (paths[0] or paths[1]):
            return None
        key = Count(text, quantity, tuple(bsyms), tensor, *paths)
        path = Path(key.sources[0], "count", key, value)
        return path if self.outside.symbolic.includes_count(text, value) else None

    def _text(self, quantity: Quantity) -> str:
        """A text for a count that another recording of the program has, too."""
        where = f"{quantity.words} at {self.line()}"
        number = sum(text.startswith(where) for text in self.observed)
        return where if not number else f"{where} ({number + 1})"

    def _paths(self, proxies: Iterable[Proxy]) -> tuple[dict[str, Path], dict[sympy.Basic, Path]] | None:
        """The paths to inputs by their names, and to the values of symbols; None where one of them has none."""
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
