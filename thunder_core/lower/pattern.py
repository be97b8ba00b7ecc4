"""Patterns: an ordinary function, and with it every stretch of a program that computes what it computes.

A pattern is found in two steps. Its *sketch* (the calls that it makes on placeholders) is searched for backwards from
each line that may be its last; that is quick and says which tensors and numbers its parameters would be. Then the
function itself is traced on tensors with exactly that metadata, in the same mode of autograd, and each aten operation
of that trace must be one of the lines that were found. So a call may be written in any way that PyTorch takes, a
conversion that changes nothing is no operation on either side, and no rule of ours decides what is equal: the proof is
at the aten level, where PyTorch has already resolved methods, defaults and overloads. Traces of patterns are
remembered by the metadata of their arguments, so that the layers of a model cost one.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from thunder_core.capture.memo import Made, fresh_fake, metadata
from thunder_core.capture.recorder import Place, Recorder
from thunder_core.errors import BadPattern, SourceLine, ThunderError
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.ir.tree import leaves, replace_leaves
from thunder_core.lower.sketch import ALLOWED, Call, Item, Parameter, Sketch, Value, behind, node_of, sketches
from thunder_core.lower.spelling import key

MOST_REMEMBERED = 256
KINDS: dict[object, type] = {torch.Tensor: torch.Tensor, int: int, float: float}
POSITIONAL = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Outcome:
    """What a function did with tensors of known metadata: its live aten operations, and its results.

    `shares` says for each result which arguments and earlier results it shares memory with.
    """

    operations: tuple[BoundSymbol, ...]
    results: tuple[TensorProxy, ...]
    shares: tuple[tuple[str, ...], ...]
    single: bool

    @cached_property
    def by_key(self) -> Mapping[Hashable, tuple[str, ...]]:
        """What the operations compute, and the names of their results; the same thing twice is there once."""
        found: dict[Hashable, tuple[str, ...]] = {}
        for operation in self.operations:
            made = found.setdefault(key(operation, self.numbers), names_in(operation.output))
            self.numbers.update(zip(names_in(operation.output), made, strict=True))
        return found

    @cached_property
    def numbers(self) -> dict[str, str]:
        """Each name, and the name of the first one that stands for the same value; complete when `by_key` is."""
        read = {proxy.name for operation in self.operations for proxy in operation.inputs}
        made = {proxy.name for operation in self.operations for proxy in operation.defines}
        return {name: name for name in read - made}


@dataclass(eq=False)
class Pattern:
    """A function whose computation is looked for; calling it calls the function.

    `parameters` are those without a default, which are found; one with a default has that value in every stretch.
    `refused` tells of stretches that were found in the latest claim and not taken: the line, and why.
    """

    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    sketches: tuple[Sketch, ...]
    refused: list[str] = field(default_factory=list)
    _outcomes: dict[Hashable, Outcome] = field(default_factory=dict, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """How the function is called."""
        return self.function.__name__

    @property
    def where(self) -> SourceLine | None:
        """The line at which the function begins."""
        return _where(self.function)

    def outcome(self, arguments: tuple[Any, ...], grad: bool) -> Outcome:
        """What the function does with such arguments, in that mode of autograd; raises what the function raises."""
        found: Outcome = _remembered(self._outcomes, arguments, grad, lambda: self._traced(arguments, grad))
        return found

    def _traced(self, arguments: tuple[Any, ...], grad: bool) -> Outcome:
        outcome, lines = trace_on(self.function, self.parameters, arguments, grad)
        if any(bsym.has_effect for bsym in lines):
            line = next(bsym for bsym in lines if bsym.has_effect)
            does = "writes to a tensor" if line.mutates else "draws random numbers or changes a state of the process"
            raise BadPattern(f"the pattern {self.name!r} {does} (`{line.symbol.name}`)", fix=ALLOWED, where=self.where)
        return outcome


@dataclass(eq=False)
class Replacement:
    """What an executor calls in place of a pattern: a function of the same arguments, and for which it is the same.

    `meta` stands in for a function that cannot run on tensors without data (one that launches a kernel by itself):
    it returns tensors with the metadata of the results.
    """

    pattern: Pattern
    symbol: Symbol
    supports: Callable[[BoundSymbol], bool]
    meta: Callable[..., Any] | None = None
    _outcomes: dict[Hashable, Outcome | str] = field(default_factory=dict, repr=False)

    def differs(self, arguments: tuple[Any, ...], grad: bool, expected: Outcome) -> str | None:
        """In what the replacement's results differ from the pattern's; None if in nothing that can be told."""
        found = _remembered(self._outcomes, arguments, grad, lambda: self._tried(arguments, grad))
        if isinstance(found, str):
            return found
        if found.single != expected.single or len(found.results) != len(expected.results):
            return f"{self.symbol.short_name} returns {_counted(found)}, the pattern {_counted(expected)}"
        pairs = zip(found.results, expected.results, strict=True)
        for ours, theirs in pairs:
            if described(ours, self.meta is None) != described(theirs, self.meta is None):
                return f"{self.symbol.short_name} returns {_told(ours)}, the pattern {_told(theirs)}"
        if self.meta is None and found.shares != expected.shares:
            return f"{self.symbol.short_name} returns tensors that share memory differently from the pattern's"
        return None

    def _tried(self, arguments: tuple[Any, ...], grad: bool) -> Outcome | str:
        function = self.meta or self.symbol.target
        try:
            outcome, lines = trace_on(function, None, arguments, grad)
        except Exception as error:  # the reason is told; what runs instead is the program as it was written
            what = error.what if isinstance(error, ThunderError) else error
            return f"{self.symbol.short_name} fails on tensors without data: {type(error).__name__}: {what}"
        effects = [bsym.symbol.name for bsym in lines if bsym.has_effect and _reaches_out(bsym)]
        return f"{self.symbol.short_name} has an effect: {', '.join(effects)}" if effects else outcome


def pattern(function: Callable[..., Any]) -> Pattern:
    """Make a pattern of an ordinary function of tensors and numbers.

    Parameters without a default stand for whatever the program has in their place: a tensor, a number, a dtype. An
    annotation (`Tensor`, `int`, `float`) narrows that, and lets a number be handed to functions that take nothing
    else. A parameter with a default is a constant. Raises `BadPattern` for a function that cannot be a pattern.

    >>> import torch
    >>> @pattern
    ... def swiglu(gate, up):
    ...     return torch.nn.functional.silu(gate) * up
    >>> [parameter.name for parameter in swiglu.parameters]
    ['gate', 'up']
    """
    if isinstance(function, Pattern):
        return function
    where = _where(function)
    parameters = _parameters(function, where)
    found = sketches(function, parameters, where)
    for sketch in found:
        _check_sketch(function, parameters, sketch.outputs, where)
    return Pattern(function, parameters, tuple(found))


def replacement(
    of: Pattern,
    function: Callable[..., Any],
    *,
    supports: Callable[[BoundSymbol], bool] = lambda bsym: True,
    meta: Callable[..., Any] | None = None,
) -> Replacement:
    """The function in place of the pattern; `BadPattern` where it cannot take the pattern's arguments."""
    try:
        inspect.signature(function).bind(*of.parameters)
    except TypeError as error:
        names = ", ".join(parameter.name for parameter in of.parameters)
        raise BadPattern(
            f"{function.__name__!r} cannot stand for the pattern {of.name!r}: {error}",
            fix=f"give it the pattern's parameters that have no default, in their order: ({names})",
            where=_where(function),
        ) from error
    except ValueError:
        pass  # a function in C that does not tell its signature
    return Replacement(of, Symbol(f"{function.__module__}.{function.__qualname__}", function), supports, meta)


def trace_on(
    function: Callable[..., Any], parameters: Sequence[Parameter] | None, arguments: tuple[Any, ...], grad: bool
) -> tuple[Outcome, list[BoundSymbol]]:
    """Run the function on tensors without data that are like the arguments: its outcome, and all its lines.

    Proxies among the arguments are called `x0`, `x1` and so on; with `parameters`, arguments go by name.
    """
    recorder = Recorder(_unknown_tensor, Place)
    fakes: dict[str, torch.Tensor] = {}
    for proxy in proxies_in(arguments):
        fake = fresh_fake(Made(proxy, None, 0), [], recorder.tensors.mode)
        fake = fake.requires_grad_(True) if proxy.requires_grad else fake
        recorder.tensors.adopt(fake, proxy.named(f"x{len(fakes)}"))
        fakes[proxy.name] = fake
    args = replace_leaves(arguments, lambda leaf: fakes[leaf.name] if isinstance(leaf, TensorProxy) else leaf)
    with torch.set_grad_enabled(grad), recorder.recording():
        if parameters is None:
            output = function(*args)
        else:
            output = function(**{parameter.name: value for parameter, value in zip(parameters, args, strict=True)})
    tensors = list(output) if isinstance(output, tuple | list) else [output]
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise TypeError(f"it returns a {type(output).__name__} that holds other things than tensors")
    # Recorded beneath autograd, proxies do not know what it will say of a result.
    results = tuple(replace(recorder.proxy_of(tensor), requires_grad=tensor.requires_grad) for tensor in tensors)
    operations = live(recorder.bound_symbols, {proxy.name for proxy in results})
    shares = _shared(list(fakes.values()), [recorder.tensors.fake(tensor) for tensor in tensors])
    return Outcome(operations, results, shares, isinstance(output, torch.Tensor)), recorder.bound_symbols


def live(lines: Sequence[BoundSymbol], read: set[str]) -> tuple[BoundSymbol, ...]:
    """The aten operations of the lines that lead to what is read."""
    kept: list[BoundSymbol] = []
    for operation in reversed([part for bsym in lines for part in (bsym.subsymbols or (bsym,))]):
        if any(proxy.name in read for proxy in operation.defines):
            kept.append(operation)
            read = read | {proxy.name for proxy in operation.inputs}
    return tuple(reversed(kept))


def names_in(output: Any) -> tuple[str, ...]:
    """The names in a result, in order, with repetitions."""
    return tuple(leaf.name for leaf in leaves(output) if isinstance(leaf, Proxy))


def proxies_in(arguments: Any) -> list[TensorProxy]:
    """Each tensor among the arguments, once, in order."""
    return list({leaf.name: leaf for leaf in leaves(arguments) if isinstance(leaf, TensorProxy)}.values())


def described(proxy: TensorProxy, with_grad: bool) -> tuple[Hashable, ...]:
    """What of a result the rest of the program may depend on."""
    return metadata(proxy) if with_grad else metadata(proxy)[:-1]


def _remembered(memories: dict[Hashable, Any], arguments: tuple[Any, ...], grad: bool, run: Callable[[], Any]) -> Any:
    names = {proxy.name: index for index, proxy in enumerate(proxies_in(arguments))}
    known = tuple((type(leaf), _key_of(leaf, names)) for leaf in leaves(arguments))
    signature = (known, _state(grad))
    if signature not in memories:
        if len(memories) >= MOST_REMEMBERED:
            memories.clear()
        memories[signature] = run()
    return memories[signature]


def _key_of(leaf: Any, names: dict[str, int]) -> Hashable:
    return (names[leaf.name], metadata(leaf)) if isinstance(leaf, TensorProxy) else repr(leaf)


def _state(grad: bool) -> tuple[Hashable, ...]:
    """The state of the process that decides what operations do."""
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in AUTOCAST_DEVICES]
    process = (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_inference_mode_enabled(),
    )
    return (grad, *autocast, *process)


def _shared(given: list[torch.Tensor], made: list[torch.Tensor]) -> tuple[tuple[str, ...], ...]:
    """For each result the names of those arguments (`x0`) and earlier results (`0`) that it shares memory with."""
    before = [(f"x{index}", tensor.untyped_storage()._cdata) for index, tensor in enumerate(given)]
    found = []
    for index, tensor in enumerate(made):
        storage = tensor.untyped_storage()._cdata
        found.append(tuple(name for name, other in before if other == storage))
        before.append((str(index), storage))
    return tuple(found)


def _reaches_out(bsym: BoundSymbol) -> bool:
    """Whether the effect of a replacement's line can be seen: a write to an argument, or a change of state."""
    return bsym.ordered or any(name.startswith("x") for name in bsym.mutates)


def _counted(outcome: Outcome) -> str:
    return "one tensor" if outcome.single else f"{len(outcome.results)} tensors"


def _told(proxy: TensorProxy) -> str:
    grad = ", which requires grad" if proxy.requires_grad else ""
    return f"{proxy.described} with strides {list(proxy.stride)}{grad}"


def _unknown_tensor(tensor: torch.Tensor) -> str:
    raise TypeError("it uses a tensor that is none of its parameters")


def _where(function: Callable[..., Any]) -> SourceLine | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else SourceLine(code.co_filename, code.co_firstlineno, code.co_name)


def _parameters(function: Callable[..., Any], where: SourceLine | None) -> tuple[Parameter, ...]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise BadPattern(f"{function!r:.80} cannot be a pattern: {error}", fix="give a Python function") from error
    if any(parameter.kind not in POSITIONAL for parameter in signature.parameters.values()):
        raise BadPattern(
            f"the pattern {function.__name__!r} takes a variable number of arguments",
            fix="name each parameter",
            where=where,
        )
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        hints = {}
    wanted = [name for name, parameter in signature.parameters.items() if parameter.default is parameter.empty]
    return tuple(Parameter(name, KINDS.get(hints.get(name))) for name in wanted)


def _check_sketch(
    function: Callable[..., Any], parameters: tuple[Parameter, ...], outputs: tuple[Any, ...], where: SourceLine | None
) -> None:
    """Refuse what can never be found."""
    name = function.__name__
    if not outputs or not all(
        isinstance(output, Value) and isinstance(node_of(output), Call | Item) for output in outputs
    ):
        raise BadPattern(
            f"the pattern {name!r} returns something that it does not compute",
            fix="return the tensor, or the tuple of tensors, that the pattern computes",
            where=where,
        )
    read = behind(*outputs)
    if unread := [parameter.name for parameter in parameters if parameter not in read]:
        raise BadPattern(
            f"nothing in the pattern {name!r} says what {', '.join(unread)} would be",
            fix="use each parameter as it stands in an operation that leads to a result, or give it a default",
            where=where,
        )
    if all(parameter.kind in (int, float) for parameter in parameters):
        raise BadPattern(
            f"the pattern {name!r} takes no tensor", fix="a pattern is a function of one or more tensors", where=where
        )
