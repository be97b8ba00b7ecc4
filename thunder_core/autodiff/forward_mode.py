"""Forward mode: a computation becomes one that takes tangents along, each line's derivative being PyTorch's own."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from thunder_core.autodiff.jvp import Push, push
from thunder_core.autodiff.refusals import underivable
from thunder_core.autodiff.step import matched, same_derivative
from thunder_core.autodiff.tape import Underivable
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol


@dataclass(eq=False)
class Pushed:
    """Lines that take tangents along: `tangents` has those of all tensors that have one, by their names.

    `names` are for what is made on the way.
    """

    names: Iterator[str]
    tangents: dict[str, TensorProxy]
    lines: list[BoundSymbol] = field(default_factory=list)
    _known: dict[Hashable, tuple[BoundSymbol, Push]] = field(default_factory=dict)

    def add(self, line: BoundSymbol) -> None:
        """Take the tangents through a line; raises `Underivable` where that cannot be done."""
        moving = {proxy.name: self.tangents[proxy.name] for proxy in line.inputs if proxy.name in self.tangents}
        if not moving:
            self.lines.append(line)
            return
        old, found = self._pushed(line, moving)
        names: dict[str, Proxy] = matched(old, line)
        names |= {one.name: self.tangents[names[name].name] for name, one in found.given.items()}
        if not found.whole:
            self.lines.append(line)
        for part in found.lines:
            self._name(part, names)
            placed = part.renamed(names, at=(line.source, line.module))
            self.lines.append(replace(placed, executor=line.executor if found.whole else ""))
        for name, tangent in found.tangents.items():
            made = names[tangent.name]
            assert isinstance(made, TensorProxy)
            self.tangents[names[name].name] = made

    def _pushed(self, line: BoundSymbol, moving: Mapping[str, TensorProxy]) -> tuple[BoundSymbol, Push]:
        layouts = tuple((one.shape, one.stride, one.dtype, one.device) for one in moving.values())
        key = (same_derivative(line, set(moving)), layouts)
        if key not in self._known:
            try:
                self._known[key] = (line, push(line, moving))
            except Underivable as error:
                raise underivable(line, str(error)) from error
        return self._known[key]

    def _name(self, line: BoundSymbol, names: dict[str, Proxy]) -> None:
        for proxy in line.defines:
            if proxy.name not in names:
                new = next(self.names)
                names[proxy.name] = proxy.named(new) if isinstance(proxy, TensorProxy) else Proxy(new)


def pushed(lines: Sequence[BoundSymbol], tangents: Mapping[str, TensorProxy], names: Iterator[str]) -> Pushed:
    """The lines with the tangents taken along, from those that are given by the names of tensors."""
    found = Pushed(names, dict(tangents))
    for line in lines:
        found.add(line)
    return found
