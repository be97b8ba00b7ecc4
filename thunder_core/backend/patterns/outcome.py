"""Outcomes: the operations and results of a function for tensors of known metadata, found without data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import sympy
import torch

from thunder_core.backend.patterns.placeholder import Parameter
from thunder_core.backend.patterns.spelling import input_of_whole_slice, key
from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import DataDependent
from thunder_core.tracing.analysis.copies import distinguishes_copies_from_views
from thunder_core.tracing.capture.fakes.memo import MemoizedResult, fresh_fake, metadata
from thunder_core.tracing.capture.location import Location
from thunder_core.tracing.capture.recorded_program import RecordedProgram
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.capture.symbolic.all_sizes import is_size_oblivious
from thunder_core.tracing.capture.symbolic.moves import Move, Sizing
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.symbolic.shape_env import TraceShapeEnv
from thunder_core.tracing.capture.torch_facts.autocast import AUTOCAST_DEVICES
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, environment_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves, replace_leaves

MAX_OUTCOMES = 256  # maximum cached outcomes of a pattern or replacement, for constant sizes or one environment


@dataclass(frozen=True)
class FunctionOutcome:
    """The outcome of a function for tensors of known metadata: its live aten operations, and its results.

    `shares` names, for each result, the arguments and earlier results that it shares memory with. `single` is True if
    the function returns a tensor, and False if it returns a tuple or list. For symbolic sizes, the outcome is valid
    under `conditions`, which were decided in its own `environment`.
    """

    operations: tuple[BoundSymbol, ...]
    results: tuple[TensorProxy, ...]
    shares: tuple[tuple[str, ...], ...]
    single: bool
    environment: TraceShapeEnv | None = None
    conditions: tuple[sympy.Basic, ...] = ()

    @cached_property
    def by_key(self) -> Mapping[Hashable, tuple[str, ...]]:
        """The names of results by a key of the computation; operations that compute the same value share one key."""
        names_of: dict[Hashable, tuple[str, ...]] = {}
        for operation in self.operations:
            if (sliced := input_of_whole_slice(operation)) is not None:
                self.value_names[operation.output.name] = self.value_names[sliced.name]
                continue
            names = names_of.setdefault(key(operation, self.value_names, self.environment), names_in(operation.output))
            self.value_names.update(zip(names_in(operation.output), names, strict=True))
        return names_of

    @cached_property
    def value_names(self) -> dict[str, str]:
        """Maps each name to the first name of the same value (value numbering); `by_key` adds the names of results."""
        read = {proxy.name for operation in self.operations for proxy in operation.inputs}
        defined = {proxy.name for operation in self.operations for proxy in operation.defines}
        return {name: name for name in read - defined}


@dataclass(frozen=True)
class FunctionRun:
    """A run of a function on tensors without data: its outcome, all its bound symbols, and its arguments' names."""

    outcome: FunctionOutcome
    bound_symbols: tuple[BoundSymbol, ...]
    argument_names: frozenset[str]

    @property
    def effects(self) -> list[str]:
        """The names of the operations whose effect a program sees: a write to an argument, or a change of state."""
        return [
            bsym.symbol.name
            for bsym in self.bound_symbols
            if bsym.has_effect and (bsym.ordered or not self.argument_names.isdisjoint(bsym.mutates))
        ]

    @property
    def distinguishes_copies_from_views(self) -> bool:
        """Whether the results depend on copies that would be views for some sizes."""
        trace = Trace("outcome", (), self.bound_symbols, self.outcome.results)
        return self.outcome.environment is not None and distinguishes_copies_from_views(trace)


def trace_without_data(
    function: Callable[..., Any],
    parameters: Sequence[Parameter] | None,
    arguments: tuple[Any, ...],
    grad: bool,
    environment: TraceShapeEnv | None = None,
) -> FunctionRun:
    """Run the function on tensors without data that have the metadata of the arguments.

    Tensors among the arguments are named `x0`, `x1` and so on; floats that are known only by name are named `y0`, `y1`.
    With `parameters`, the arguments are passed by keyword. Conditions on symbolic sizes are decided in a fork of the
    arguments' environment, or of `environment` if it is set. Raises `TypeError` if the value of a named float decides a
    branch, or if the function returns something other than tensors.
    """
    environment = environment or environment_of(leaf for leaf in leaves(arguments) if isinstance(leaf, Proxy))
    fork = None if environment is None else environment.fork()
    recorder = Recorder(ParametersOnly(), environment=fork)
    proxies = proxies_in(arguments)
    names = [f"x{number}" for number in range(len(proxies))]
    fakes = {
        proxy.name: _adopt(proxy if fork is None else Move(fork).leaf(proxy), name, recorder)
        for proxy, name in zip(proxies, names, strict=True)
    }
    floats = {
        leaf: recorder.numbers.unknown_number(name, float, refuse_value)
        for leaf, name in names_of_floats(arguments).items()
    }
    args = replace_leaves(arguments, lambda leaf: _stand_in(leaf, fakes, floats, fork))
    named = {} if parameters is None else dict(zip((parameter.name for parameter in parameters), args, strict=True))
    with torch.set_grad_enabled(grad), recorder.recording():
        try:
            output = function(**named) if named else function(*args)
        except DataDependent as error:
            raise TypeError(error.what) from error
    tensors = _tensors_of(output)
    # The proxies are recorded below autograd, so their `requires_grad` is not that of the results.
    results = tuple(replace(recorder.proxy_of(tensor), requires_grad=tensor.requires_grad) for tensor in tensors)
    outcome = FunctionOutcome(
        operations=live_operations(recorder.bound_symbols, {proxy.name for proxy in results}),
        results=results,
        shares=_shared_memory(list(fakes.values()), [recorder.tensors.fake(tensor) for tensor in tensors]),
        single=isinstance(output, torch.Tensor),
        environment=fork,
        conditions=() if fork is None or environment is None else fork.decided_since(environment),
    )
    return FunctionRun(outcome, tuple(recorder.bound_symbols), frozenset(names))


def _tensors_of(output: Any) -> list[torch.Tensor]:
    """Return the tensors that a function returned; raise `TypeError` if it returned something else."""
    tensors = list(output) if isinstance(output, tuple | list) else [output]
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise TypeError(f"it returns {object_of_class(type(output))}, not a tensor or a structure of tensors")
    return tensors


def _adopt(proxy: TensorProxy, name: str, recorder: Recorder) -> torch.Tensor:
    """Return a tensor without data with the metadata of an argument, and record it under the name."""
    fake = fresh_fake(MemoizedResult(proxy, None, 0), [], recorder.tensors.mode)
    fake = fake.requires_grad_(True) if proxy.requires_grad else fake
    recorder.tensors.adopt(fake, proxy.with_name(name))
    return fake


def _stand_in(
    leaf: object,
    fakes: Mapping[str, torch.Tensor],
    floats: Mapping[Proxy, SymbolicNumber],
    environment: TraceShapeEnv | None,
) -> Any:
    """Return the value that the function receives for an argument."""
    if isinstance(leaf, TensorProxy):
        return fakes[leaf.name]
    if isinstance(leaf, NumberProxy) and environment is not None:
        return Move(environment).size(leaf.value)
    return floats[leaf] if isinstance(leaf, Proxy) else leaf


def live_operations(bsyms: Sequence[BoundSymbol], read: set[str]) -> tuple[BoundSymbol, ...]:
    """Return the aten operations of the bound symbols that the names in `read` depend on."""
    operations: list[BoundSymbol] = []
    for operation in reversed([inner for bsym in bsyms for inner in (bsym.subsymbols or (bsym,))]):
        if any(proxy.name in read for proxy in operation.defines):
            operations.append(operation)
            read = read | {proxy.name for proxy in operation.inputs}
    return tuple(reversed(operations))


def names_in(output: object) -> tuple[str, ...]:
    """Return the names in a result, in order, with repetitions."""
    return tuple(leaf.name for leaf in leaves(output) if isinstance(leaf, Proxy))


def proxies_in(arguments: object) -> list[TensorProxy]:
    """Return each tensor among the arguments once, in order."""
    return list({leaf.name: leaf for leaf in leaves(arguments) if isinstance(leaf, TensorProxy)}.values())


def names_of_floats(arguments: object) -> dict[Proxy, str]:
    """Return `y0`, `y1` and so on for the numbers among the arguments that are known only by name."""
    named = dict.fromkeys(leaf for leaf in leaves(arguments) if type(leaf) is Proxy)
    return {proxy: f"y{number}" for number, proxy in enumerate(named)}


def describe(proxy: TensorProxy, with_grad: bool, environment: Sizing | None = None) -> tuple[Hashable, ...]:
    """Return all metadata of a tensor on which a program may depend. Comparing two descriptions adds no guard."""
    comparable = _comparable(proxy, environment)
    return metadata(replace(comparable, requires_grad=with_grad and proxy.requires_grad))


def describe_layout(proxy: TensorProxy, environment: Sizing | None = None) -> tuple[Hashable, ...]:
    """Return a description without the strides of dimensions of size 1, which no address depends on.

    If a bound symbol was recorded before its sizes were decided, these strides may differ from PyTorch's strides for
    the sizes. The strides are kept if PyTorch may use them to decide whether the tensor is in channels_last format.
    """
    extents = (*proxy.shape, *proxy.stride)
    if not all(isinstance(extent, int) for extent in extents) or _may_be_channels_last(proxy):
        return describe(proxy, False, environment)
    counted = tuple(0 if size == 1 else stride for size, stride in zip(proxy.shape, proxy.stride, strict=True))
    return describe(replace(proxy, stride=counted), False, environment)


def _may_be_channels_last(proxy: TensorProxy) -> bool:
    """Whether PyTorch may treat a tensor as channels_last: not if the last of 4 or 5 dimensions has stride 1."""
    sizes, strides = proxy.shape, proxy.stride
    return len(sizes) in (4, 5) and (strides[-1] != 1 or sizes[-1] == 1 or sizes[1] == 1)


def _comparable(proxy: TensorProxy, environment: Sizing | None) -> TensorProxy:
    """Return a proxy with expressions in place of symbolic sizes."""
    if environment is None:
        return proxy
    shape: tuple[Any, ...] = tuple(map(environment.simplify_number, proxy.shape))
    stride: tuple[Any, ...] = tuple(map(environment.simplify_number, proxy.stride))
    return replace(proxy, shape=shape, stride=stride)


@dataclass
class Outcomes:
    """Outcomes by the metadata of arguments: one table for constant sizes, and one for each environment of symbols."""

    constant: dict[Hashable, Any] = field(default_factory=dict)
    symbolic: MutableMapping[TraceShapeEnv, dict[Hashable, Any]] = field(default_factory=WeakKeyDictionary)

    def get(self, arguments: tuple[Any, ...], grad: bool, run: Callable[[], Any]) -> Any:
        """Return the outcome for arguments of this metadata in this grad mode, from the cache or by calling `run`."""
        environment = environment_of(leaf for leaf in leaves(arguments) if isinstance(leaf, Proxy))
        outcomes = self.constant if environment is None else self.symbolic.setdefault(environment, {})
        names = {proxy.name: index for index, proxy in enumerate(proxies_in(arguments))}
        floats = names_of_floats(arguments)
        proxies = (Proxy(floats[leaf]) if type(leaf) is Proxy else leaf for leaf in leaves(arguments))
        leaf_keys = tuple((type(leaf), _key_of(leaf, names, environment)) for leaf in proxies)
        signature = (leaf_keys, _state(grad))
        if signature not in outcomes:
            if len(outcomes) >= MAX_OUTCOMES:
                outcomes.clear()
            outcomes[signature] = run()
        return outcomes[signature]


def _key_of(leaf: object, names: dict[str, int], environment: TraceShapeEnv | None) -> Hashable:
    if isinstance(leaf, TensorProxy):
        return (names[leaf.name], describe(leaf, True, environment))
    if isinstance(leaf, NumberProxy) and environment is not None:
        expression: Hashable = environment.simplify_number(leaf.value)
        return expression
    return repr(leaf)


def _state(grad: bool) -> tuple[Hashable, ...]:
    """Return the process settings that results of operations depend on."""
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in AUTOCAST_DEVICES]
    process = (
        is_size_oblivious(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_inference_mode_enabled(),
    )
    return (grad, *autocast, *process)


def _shared_memory(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> tuple[tuple[str, ...], ...]:
    """Return, for each result, the names of the arguments (`x0`) and earlier results (`0`) that share its memory."""
    before = [(f"x{index}", tensor.untyped_storage()._cdata) for index, tensor in enumerate(inputs)]
    groups = []
    for index, tensor in enumerate(outputs):
        storage = tensor.untyped_storage()._cdata
        groups.append(tuple(name for name, earlier in before if earlier == storage))
        before.append((str(index), storage))
    return tuple(groups)


def refuse_value() -> NoReturn:
    """Raise TypeError for a function that reads the value of a float that is known only by its name."""
    raise TypeError("the value of a number is not known while tracing")


class ParametersOnly(RecordedProgram):
    """A recorded function whose tensors are all parameters or results; other tensors raise `TypeError`."""

    def name_input(self, value: object) -> str:  # noqa: ARG002
        """Raise TypeError for a tensor that is not an argument."""
        raise TypeError("it uses a tensor that is not one of its parameters")

    def location(self) -> Location:
        """Return a location without a line."""
        return Location()
