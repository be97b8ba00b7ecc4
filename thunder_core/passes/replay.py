"""A replay: a trace runs again on tensors without data, and its bound symbols are recorded again with changes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from itertools import count
from typing import Any, NoReturn

import torch

from thunder_core.foundation.errors import DataDependent
from thunder_core.tracing.capture.fakes.memo import MemoizedResult, fresh_fake
from thunder_core.tracing.capture.location import Location
from thunder_core.tracing.capture.recorded_program import RecordedProgram
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, environment_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import replace_leaves


def proxies_defined_in(bsym: BoundSymbol) -> Iterator[Proxy]:
    """Yield the proxies that a bound symbol or its operations define; each name once."""
    defined = {proxy.name: proxy for part in bsym.subsymbols for proxy in proxies_defined_in(part)}
    yield from (defined | {proxy.name: proxy for proxy in bsym.defines}).values()


class Replay(RecordedProgram):
    """Runs the bound symbols of a trace again, on fakes, and records the resulting bound symbols in `bsyms`.

    `title` is the subject of the error message for a trace that cannot be run again ("Autocast cannot be applied ...").
    """

    title = "This transform"

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.bsyms: list[BoundSymbol] = []
        self._location = Location()
        self._values: dict[str, Any] = dict(trace.constants)
        self._constant_names = {id(value): name for name, value in trace.constants.items()}
        self._recorder = Recorder(self, environment=environment_of(trace.inputs))
        self._values |= {proxy.name: self._input(proxy) for proxy in trace.inputs}

    def name_input(self, value: object) -> str:
        """Return the name of a constant of the trace."""
        return self._constant_names[id(value)]

    def location(self) -> Location:
        """Return the source line and the module of the bound symbol that runs."""
        return self._location

    @abstractmethod
    def _run(self, bsym: BoundSymbol) -> None:
        """Run a bound symbol, and append the bound symbols that replace it to `bsyms`."""

    @abstractmethod
    def _restore(self, leaf: object) -> Any:
        """Return the value of a proxy.

        If its metadata differs from the proxy's, record bound symbols that restore it.
        """

    def _run_all(self) -> None:
        """Run all bound symbols of the trace; the recorder must be recording."""
        for bsym in self.trace.bound_symbols:
            self._location = Location(bsym.source, bsym.module)
            self._run(bsym)

    def _proxies_of(self, output: object) -> Any:
        """Return an output of the trace with the recording's proxies of its values."""
        return self._recorder.tensors.to_proxies(self._values_of(output))

    def _former_names(self, changed: Set[str] = frozenset()) -> dict[str, Proxy]:
        """Map each name of the recording to a proxy for the trace: with the value's former name, or with a new name.

        The names in `changed` have other values than before. These values get new names, because a name that two stages
        of a trace share has the same value in both.
        """
        input_names = {proxy.name for proxy in self.trace.inputs} | self.trace.constants.keys()
        defined = [proxy.name for bsym in self.trace.bound_symbols for proxy in bsym.defines]
        former: dict[str, str] = {}
        for name in (name for name in defined if name not in changed):
            new = self._recorded_name(self._values.get(name))
            if new is not None and new not in input_names:
                former.setdefault(new, name)
        used_names = input_names | set(defined)
        unused = (name for number in count() if (name := f"t{number}") not in used_names)
        proxies = (proxy for bsym in self.bsyms for proxy in proxies_defined_in(bsym))
        return {proxy.name: replace(proxy, name=former.get(proxy.name) or next(unused)) for proxy in proxies}

    def _recorded_name(self, value: object) -> str | None:
        """Return the name of a value in the recording; None for a number."""
        if isinstance(value, torch.Tensor):
            return self._recorder.proxy_of(value).name
        return value.name if isinstance(value, Proxy) else None

    def _input(self, proxy: Proxy) -> Any:
        """Return the value that stands for an input: a tensor without data, or a number of unknown value."""
        if isinstance(proxy, NumberProxy):
            return proxy.value
        if proxy.kind is not None:
            return self._recorder.numbers.unknown_number(proxy.name, proxy.kind, self._refuse_value)
        if not isinstance(proxy, TensorProxy):
            return proxy
        fake = fresh_fake(MemoizedResult(proxy, None, 0), [], self._recorder.tensors.mode)
        self._recorder.tensors.adopt(fake, proxy)
        return fake.requires_grad_(True) if proxy.requires_grad else fake

    def _refuse_value(self) -> NoReturn:
        """Raise `DataDependent`, because the program reads the value of a number while the trace runs again."""
        raise DataDependent(
            f"{self.title} cannot be applied to code that branches on the value of a number",
            fix="put this part under torch.autocast in the program",
        )

    def _append_unchanged(self, bsym: BoundSymbol) -> None:
        """Append a bound symbol without running it again, with the new proxies as its arguments.

        The bound symbol reads a value from a tensor, or checks a value.
        """
        renamed = {proxy.name: Proxy(self._recorder.tensors.next_name()) for proxy in bsym.defines}
        self._values |= renamed
        read = {proxy.name: self._values[proxy.name] for proxy in bsym.inputs if not isinstance(proxy, NumberProxy)}
        names = {
            name: value if isinstance(value, Proxy) else self._recorder.proxy_of(value) for name, value in read.items()
        }
        self.bsyms.append(bsym.rename(names | renamed))

    def _append_with_restored_operands(self, bsym: BoundSymbol) -> None:
        """Append a bound symbol without running it again; its operands get their former metadata.

        Its sub-traces are valid only for this metadata.
        """
        inputs = (proxy for proxy in bsym.inputs if not isinstance(proxy, NumberProxy))
        operands = {proxy.name: self._restore(proxy) for proxy in inputs}
        names: dict[str, Proxy] = self._recorder.tensors.to_proxies(operands)
        names |= {
            proxy.name: replace(proxy, name=self._recorder.tensors.next_name()) for proxy in proxies_defined_in(bsym)
        }
        for proxy in bsym.defines:
            with without_our_functions():
                self._values[proxy.name] = self._input(names[proxy.name])
        self.bsyms.append(bsym.rename(names))

    def _record(self, target: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, list[BoundSymbol]]:
        """Return the result of a call, and the bound symbols that the call made."""
        start = len(self._recorder.bound_symbols)
        output = target(*args, **kwargs)
        return output, list(self._recorder.bound_symbols[start:])

    def _values_of(self, tree: object) -> Any:
        """Return a structure with each proxy in it replaced by its value."""
        return replace_leaves(tree, self._value)

    def _value(self, leaf: object) -> Any:
        """Return the value of a name. A symbolic number is its own value: an expression in symbols of the trace."""
        if isinstance(leaf, NumberProxy):
            return leaf.value
        return self._values[leaf.name] if isinstance(leaf, Proxy) else leaf

    def _bind(self, names: Any, values: Any) -> None:
        """Store the value of each proxy in a result, unless the proxy already has a value."""
        if isinstance(names, Proxy):
            self._values.setdefault(names.name, values)
        elif isinstance(names, tuple | list):
            for name, value in zip(names, values, strict=True):
                self._bind(name, value)
        elif isinstance(names, dict):
            for key, name in names.items():
                self._bind(name, values[key])
