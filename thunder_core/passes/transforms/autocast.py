"""Mixed precision: what torch.autocast does to a program, done to its trace."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from thunder_core.foundation.errors import DataDependent, OperationFailed
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.capture.fakes.memo import Made, fresh_fake, metadata, signature
from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.place import Place
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.capture.torch_facts.autocast import DEVICES, State, autocast_state, changes
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions
from thunder_core.tracing.capture.torch_facts.switches import switches_autocast
from thunder_core.tracing.capture.torch_facts.symbols import as_bound_symbol
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BACKWARD_OF, BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves, replace_leaves
from thunder_core.tracing.library.objects import EXPECTATIONS

CAST = torch.ops.aten._to_copy.default


@dataclass(frozen=True)
class Autocast(Transform):
    """Compute in `dtype` what torch.autocast computes in it, and in float32 what it computes in that.

    Which operations these are, and how their inputs are cast, is PyTorch's to say: each bound symbol runs on tensors
    without data under torch.autocast, and what came of it replaces the bound symbol. The casts become bound symbols of
    their own, so that one weight is cast once, and compilers see them; a bound symbol that does the same without
    autocast once its inputs are cast stays the call that the user wrote. What the program itself does with
    torch.autocast is respected: an inner `enabled=False`, or another dtype, wins. What a branch or a loop takes and
    returns keeps its dtypes, so that branches agree and a loop carries the same at each turn.
    """

    dtype: torch.dtype = torch.bfloat16

    before: ClassVar[tuple[str, ...]] = ("cse", "dce")

    def __call__(self, trace: Trace) -> Trace:
        """The trace with its casts; `OperationFailed` if it differentiates itself, since eager casts before that."""
        return self._cast(trace, keeps_dtypes=False)

    def of_function(self, function: Trace) -> Trace:
        """The function with its casts, and its results cast back to the dtypes that they had."""
        return self._cast(function, keeps_dtypes=True)

    def _cast(self, trace: Trace, *, keeps_dtypes: bool) -> Trace:
        for bsym in trace.bound_symbols:
            if bsym.module.startswith(BACKWARD_OF):
                raise OperationFailed(
                    "Autocast cannot be applied to a program that calls backward() itself",
                    fix="put the forward part under torch.autocast in the program, or compile only this part",
                    where=bsym.source,
                )
        ambient = autocast_state()
        off = tuple((False, dtype) for _, dtype in ambient)
        cast = _Replay(trace).under(self.dtype, keeps_dtypes=keeps_dtypes)
        bsyms = (*changes(ambient, off), *cast.bound_symbols, *changes(off, ambient))
        return cast.having(bsyms, made_by="autocast")


class _Replay:
    """Runs the bound symbols of a trace once more, on fakes, and writes down what became of them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.bsyms: list[BoundSymbol] = []
        self._place = Place()
        self._values: dict[str, Any] = dict(trace.constants)
        self._context = _Context()
        self._untouched: set[Hashable] = set()
        names = {id(value): name for name, value in trace.constants.items()}
        self._recorder = Recorder(lambda tensor: names[id(tensor)], lambda: self._place)
        self._values |= {proxy.name: self._input(proxy) for proxy in trace.inputs}

    def _input(self, proxy: Proxy) -> Any:
        if not isinstance(proxy, TensorProxy):
            return self._recorder.numbers.at_source(_unknown, proxy.name)
        fake = fresh_fake(Made(proxy, None, 0), [], self._recorder.tensors.mode)
        self._recorder.tensors.adopt(fake, proxy)
        return fake.requires_grad_(True) if proxy.requires_grad else fake

    def under(self, dtype: torch.dtype, *, keeps_dtypes: bool) -> Trace:
        """The trace of what the bound symbols do with autocast on, as far as they do not switch it themselves.

        Its results have the dtypes that these give them, or are cast back to those that they had.
        """
        with ExitStack() as stack:
            for kind in DEVICES:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
            stack.enter_context(self._recorder.recording())
            for bsym in self.trace.bound_symbols:
                self._place = Place(bsym.source, bsym.module)
                self._run(bsym)
            output = replace_leaves(self.trace.output, self._in_its_dtype) if keeps_dtypes else self.trace.output
        output = self._recorder.tensors.to_proxies(self._valued(output))
        return self.trace.having(self.bsyms, made_by="autocast", output=output)

    def _run(self, bsym: BoundSymbol) -> None:
        target = bsym.symbol.target
        if switches_autocast(bsym):
            self._context.follow(bsym)
        elif target is torch.manual_seed:
            self.bsyms.append(bsym)
        elif bsym.functions:
            self._call_functions(bsym)
        elif asks_for_a_value(bsym):
            self._keep(bsym)
        else:
            args, kwargs = self._valued((bsym.args, dict(bsym.kwargs)))
            output, bsyms = self._recorded(target, args, kwargs)
            self._bind(bsym.output, output)
            self.bsyms += self._explicit(target, args, kwargs, bsyms[0]) if is_computation(bsyms) else bsyms

    def _keep(self, bsym: BoundSymbol) -> None:
        """A bound symbol that takes a value out of a tensor, or checks one, on what its tensors are now."""
        renamed = {proxy.name: Proxy(self._recorder.tensors.next_name()) for proxy in bsym.defines}
        self._values |= renamed
        read = {proxy.name: self._values[proxy.name] for proxy in bsym.inputs}
        names = {name: one if isinstance(one, Proxy) else self._recorder.proxy_of(one) for name, one in read.items()}
        self.bsyms.append(bsym.renamed(names | renamed))

    def _call_functions(self, bsym: BoundSymbol) -> None:
        """A branch or a loop, whose functions are cast by themselves, on operands of the dtypes that they take."""
        operands = {proxy.name: self._in_its_dtype(proxy) for proxy in bsym.inputs}
        names: dict[str, Proxy] = self._recorder.tensors.to_proxies(operands)
        for proxy in bsym.defines:
            names[proxy.name] = replace(proxy, name=self._recorder.tensors.next_name())
            with without_our_functions():
                self._values[proxy.name] = self._input(names[proxy.name])
        self.bsyms.append(bsym.renamed(names))

    def _in_its_dtype(self, leaf: Any) -> Any:
        """The value of a name, cast to the dtype that it had before, by a bound symbol, where it has another one."""
        value = self._values[leaf.name] if isinstance(leaf, Proxy) else leaf
        if not isinstance(leaf, TensorProxy) or value.dtype is leaf.dtype:
            return value
        with _without_autocast():
            value, bsyms = self._recorded(CAST, (value,), {"dtype": leaf.dtype})
        self.bsyms += bsyms
        return value

    def _recorded(self, target: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, list[BoundSymbol]]:
        """The result of a call, and the bound symbols that it made."""
        start = len(self._recorder.bound_symbols)
        output = target(*args, **kwargs)
        return output, [bsym for bsym in self._recorder.bound_symbols[start:] if not switches_autocast(bsym)]

    def _plain(self, target: Callable[..., Any], args: Any, kwargs: Any) -> list[BoundSymbol]:
        """The bound symbols that a call makes without autocast; none if dtypes then differ and it cannot be made."""
        try:
            return self._recorded(target, args, kwargs)[1]
        except RuntimeError:
            return []

    def _explicit(self, target: Callable[..., Any], args: Any, kwargs: Any, bsym: BoundSymbol) -> Iterable[BoundSymbol]:
        """Bound symbols that do without autocast what one does under it."""
        key = signature(target, args, kwargs, self._recorder.tensors.describe)
        if key is not None and (key, autocast_state()) in self._untouched:
            return [bsym]
        before = autocast_state()
        with _without_autocast():
            if key_of(self._plain(target, args, kwargs)) == key_of([bsym]):
                self._untouched.add((key, before))
                return [bsym]
            return self._with_casts(target, args, kwargs, bsym)

    def _with_casts(
        self, target: Callable[..., Any], args: Any, kwargs: Any, bsym: BoundSymbol
    ) -> Sequence[BoundSymbol]:
        """The call on inputs that were cast before, if it then does the same; else what it consists of."""
        tensors_by_name = {self._recorder.proxy_of(tensor).name: tensor for tensor in tensors_in((args, kwargs))}
        casts = [p for p in bsym.subsymbols if p.symbol.target is CAST and p.args[0].name in tensors_by_name]
        casted = {c.args[0].name: self._recorded(CAST, (tensors_by_name[c.args[0].name],), c.kwargs) for c in casts}

        def cast(leaf: Any) -> Any:
            name = self._recorder.proxy_of(leaf).name if isinstance(leaf, torch.Tensor) else ""
            return casted[name][0] if name in casted else leaf

        parts = [as_bound_symbol(part, bsym) for part in bsym.subsymbols]
        direct = self._plain(target, *replace_leaves((args, kwargs), cast))
        names = {c.output.name: self._recorder.proxy_of(casted[c.args[0].name][0]).name for c in casts}
        rest = replace(bsym, subsymbols=tuple(part for part in bsym.subsymbols if part not in casts))
        if key_of(direct) != key_of([rest], names):
            return parts
        results = {old.name: new for old, new in zip(direct[0].outputs, bsym.outputs, strict=True)}
        return [*(one for _, bsyms in casted.values() for one in bsyms), direct[0].renamed(results)]

    def _valued(self, tree: Any) -> Any:
        return replace_leaves(tree, lambda leaf: self._values[leaf.name] if isinstance(leaf, Proxy) else leaf)

    def _bind(self, names: Any, values: Any) -> None:
        if isinstance(names, Proxy):
            self._values.setdefault(names.name, values)
        elif isinstance(names, tuple | list):
            for name, value in zip(names, values, strict=True):
                self._bind(name, value)
        elif isinstance(names, dict):
            for key, name in names.items():
                self._bind(name, values[key])


class _Context:
    """The contexts of torch.autocast that the program opens and closes, around each of which is the transform's own.

    A context switches autocast, goes one deeper, and comes back; then it switches to what was before, which at the
    outermost is not what was there when the program was traced, and says whether casts are kept, which they are not.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._is_ending = False
        self._around: State | None = None

    def follow(self, bsym: BoundSymbol) -> None:
        """Do what a bound symbol of the program does to autocast's state."""
        target = bsym.symbol.target
        if target in (torch.autocast_increment_nesting, torch.autocast_decrement_nesting):
            self._depth += 1 if target is torch.autocast_increment_nesting else -1
            self._is_ending = target is torch.autocast_decrement_nesting and self._depth == 0
        elif target is torch.set_autocast_cache_enabled:
            self._is_ending = False
        elif target is not torch.clear_autocast_cache:
            if self._around is None:
                self._around = autocast_state()
            if self._is_ending:
                restore(self._around)
            else:
                target(*bsym.args, **bsym.kwargs)


def restore(state: State) -> None:
    """Switch autocast to a state."""
    for kind, (enabled, dtype) in zip(DEVICES, state, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def asks_for_a_value(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol gives what decides the way of a program, or checks it; `item` alone does neither."""
    gives = bool(bsym.outputs) and not bsym.tensors and not bsym.has_effect
    takes = gives and any(isinstance(proxy, TensorProxy) for proxy in bsym.inputs)
    return bsym.symbol.name in EXPECTATIONS or (takes and bsym.symbol.target is not torch.Tensor.item)


def is_computation(bsyms: Sequence[BoundSymbol]) -> bool:
    """Whether a call became one bound symbol that computes something, and writes to nothing."""
    return len(bsyms) == 1 and bool(bsyms[0].subsymbols) and not bsyms[0].mutates


def key_of(bsyms: Sequence[BoundSymbol], names: Mapping[str, str] | None = None) -> Hashable:
    """A key of what aten operations do, whatever the names of what they make; `names` are those of inputs."""
    known: dict[str, Hashable] = dict(names or {})
    keys: list[Hashable] = []
    for bsym in bsyms:
        for part in bsym.subsymbols:
            keys.append((part.symbol, *(_described(leaf, known) for leaf in leaves((part.args, dict(part.kwargs))))))
            for proxy in part.outputs:
                known.setdefault(proxy.name, len(keys))
                keys.append(_described(proxy, known))
    return tuple(keys)


def _described(leaf: Any, names: Mapping[str, Hashable]) -> Hashable:
    if isinstance(leaf, TensorProxy):
        return (names.get(leaf.name, leaf.name), metadata(leaf))
    return names.get(leaf.name, leaf.name) if isinstance(leaf, Proxy) else repr(leaf)


@contextmanager
def _without_autocast() -> Iterator[None]:
    with ExitStack() as stack:
        for kind in DEVICES:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _unknown() -> float:
    raise DataDependent(
        "Autocast cannot be applied to code that branches on the value of a number",
        fix="put this part under torch.autocast in the program",
    )
