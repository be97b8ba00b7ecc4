"""Vector-Jacobian products of bound symbols, from PyTorch's own autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from thunder_core.foundation.errors.tree import first_line
from thunder_core.passes.autodiff.derivation import VJP, Derivation
from thunder_core.passes.autodiff.rules import is_live, target_of
from thunder_core.passes.autodiff.selected_gradients import fill_selected_on_cpu
from thunder_core.passes.autodiff.tape import Tape, Underivable, pairs_of
from thunder_core.tracing.analysis.data_errors import is_check
from thunder_core.tracing.analysis.own_derivatives import has_derivative_rule
from thunder_core.tracing.capture.fakes.fake import empty, new_mode
from thunder_core.tracing.capture.symbolic.all_sizes import CallsForAllSizes, for_all_sizes
from thunder_core.tracing.capture.symbolic.probed_floats import (
    AmbiguousFloats,
    FloatProxies,
    FloatValueRead,
    restrict,
    stand_ins,
)
from thunder_core.tracing.capture.symbolic.shape_env import TraceShapeEnv, number_of
from thunder_core.tracing.capture.symbolic_probe import with_names, with_values
from thunder_core.tracing.capture.torch_facts.graph import graph_of, skipped_checks_refused
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.capture.torch_facts.triton_launches import attempt_without_data
from thunder_core.tracing.ir.evaluate import evaluate, evaluate_bound_symbol
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, environment_of, tensor_proxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves

# Parts of PyTorch's errors for operations that it cannot differentiate.
MISSING_FORMULA = ("derivative for", "no autograd formula")


@dataclass(eq=False)
class RecordedDerivation(Derivation):
    """A bound symbol that ran once under PyTorch's autograd on fakes, with the autograd graph of this run.

    `bsyms` are the aten operations of the forward. `inputs` and `outputs` are the fakes that stand for the
    differentiated inputs and for the results; they belong to `mode`.
    """

    mode: FakeTensorMode = field(repr=False)
    tape: Tape = field(repr=False)
    inputs: tuple[torch.Tensor, ...] = field(repr=False)
    outputs: tuple[torch.Tensor, ...] = field(repr=False)

    def _differentiate(
        self, cotangents: Sequence[TensorProxy | None], accumulated: Sequence[TensorProxy | None]
    ) -> VJP:
        tape = self.tape.continue_in_backward()
        with self.mode:
            fakes = [None if proxy is None else empty(proxy) for proxy in (*cotangents, *accumulated)]
        names = tuple(None if fake is None else tape.new_proxy(fake) for fake in fakes)
        ends = (*self.outputs, *self.inputs)
        pairs = [(end, fake) for end, fake in zip(ends, fakes, strict=True) if fake is not None]
        try:
            checks = skipped_checks_refused(graph_of([end for end, _ in pairs]))
            with torch._C._DisableAutocast(), attempt_without_data(), checks, self.mode, tape:
                input_gradients = torch.autograd.grad(
                    [end for end, _ in pairs],
                    self.inputs,
                    [fake for _, fake in pairs],
                    retain_graph=True,
                    allow_unused=True,
                )
        except Underivable:
            raise
        except DataDependentOutputException as error:
            raise Underivable("its backward reads values of tensors") from error
        except Exception as error:  # PyTorch's formulas may raise any exception
            failure = Underivable(f"its backward fails: {type(error).__name__}: {first_line(error)}")
            failure.missing_formula = self.bsym if any(words in str(error) for words in MISSING_FORMULA) else None
            raise failure from error
        gradients = tuple(None if gradient is None else tape.proxy(gradient) for gradient in input_gradients)
        bsyms, results = tuple(fill_selected_on_cpu(bsyms_for(tape.functionalize(), gradients))), len(self.outputs)
        return VJP(names[:results], bsyms, gradients, names[results:])


@dataclass(eq=False)
class ProbedDerivation(RecordedDerivation):
    """A derivation with probe values in place of symbolic floats. Its `twin` is the same with different probe values.

    If a number in the bound symbols differs between the two derivations, the number is a symbolic float, or C++ code
    has computed it from a symbolic float. `names` maps such numbers to proxies.
    """

    twin: RecordedDerivation | None = field(default=None, repr=False)
    names: FloatProxies | None = field(default=None, repr=False)

    def _differentiate(
        self, cotangents: Sequence[TensorProxy | None], accumulated: Sequence[TensorProxy | None]
    ) -> VJP:
        assert self.twin is not None and self.names is not None
        vjp, twin = (
            differentiate(cotangents, accumulated)
            for differentiate in (super()._differentiate, self.twin._differentiate)
        )
        bsyms = with_names(vjp.bsyms, twin.bsyms, self.names)
        if bsyms is None:
            raise Underivable("its backward computes with a float that changes from call to call")
        return replace(vjp, bsyms=tuple(bsyms))


def derive(bsym: BoundSymbol, requires_grad_names: frozenset[str]) -> RecordedDerivation | None:
    """Return the derivation of a bound symbol; None if autograd tracks no result.

    The inputs with names in `requires_grad_names` require gradients. A bound symbol with symbolic floats is derived
    with the symbols. If C++ code reads the values of the floats, it is derived with probe values, and a comparison of
    two such runs identifies the floats. If this fails, it is derived for the floats' current values, which are guarded.
    """
    floats = [p for p in bsym.inputs if isinstance(p, NumberProxy) and isinstance(p.value, torch.SymFloat)]
    if not floats:
        return derive_with_own_numbers(bsym, requires_grad_names)
    environment = floats[0].value.node.shape_env
    try:
        with environment.withholding_floats():
            derivation = derive_with_own_numbers(bsym, requires_grad_names)
            if derivation is not None:
                derivation.vjp(derivation.results)
            return derivation
    except (FloatValueRead, Underivable):
        return derive_by_probes(bsym, requires_grad_names, floats) or derive_with_own_numbers(bsym, requires_grad_names)


def derive_by_probes(
    bsym: BoundSymbol, requires_grad_names: frozenset[str], floats: Sequence[NumberProxy]
) -> ProbedDerivation | None:
    """Return the derivation with probe values in place of symbolic floats; None if the floats cannot be identified."""
    pairs = stand_ins([proxy.value for proxy in floats])
    if pairs is None:
        return None
    try:
        names = FloatProxies([(proxy.value, pair) for proxy, pair in zip(floats, pairs, strict=True)], number_of)
        probe, twin = (
            derive_with_own_numbers(
                with_values(bsym, {proxy.name: pair[index] for proxy, pair in zip(floats, pairs, strict=True)}),
                requires_grad_names,
            )
            for index in (0, 1)
        )
        bsyms = None if probe is None or twin is None else with_names(probe.bsyms, twin.bsyms, names)
        if probe is None or bsyms is None:
            return None
        shared = ("differentiated_inputs", "results", "mode", "tape", "inputs", "outputs")
        fields = {name: getattr(probe, name) for name in shared}
        derivation = ProbedDerivation(bsym=bsym, bsyms=tuple(bsyms), **fields, twin=twin, names=names)
        derivation.vjp(derivation.results)
    except (AmbiguousFloats, Underivable):
        return None
    restrict([proxy.value for proxy in floats])
    return derivation


def derive_with_own_numbers(bsym: BoundSymbol, requires_grad_names: frozenset[str]) -> RecordedDerivation | None:
    """Return the derivation of a bound symbol without probe values; None if autograd tracks no result.

    An operation without a derivative, such as some backward operations, is decomposed if PyTorch has a decomposition.
    Raises `Underivable` for a bound symbol that writes to a tracked tensor, or that does not run on tensors without
    data.
    """
    if any(name in requires_grad_names for name in bsym.mutates):
        raise Underivable("it writes to a tensor that needs a gradient")
    if is_live(bsym.symbol.target):
        reason = "because it cannot be traced, or reads or writes objects that are written to"
        raise Underivable(f"its backward runs after the program, {reason}")
    if not bsym.mutates and not any(map(is_differentiable_proxy, bsym.outputs)):
        return None  # autograd tracks no numbers, indices and results of comparisons
    with torch.inference_mode(False):  # in inference mode, autograd would record nothing
        derivation = _derive(bsym, requires_grad_names)
        if derivation is not None and is_symbolic_and_empty(bsym):
            _require_differentiable_at_hints(bsym, requires_grad_names)
    if derivation is not None and any(_lacks_formula(output) for output in derivation.outputs):
        target = bsym.symbol.target
        decomposition = decomposition_table.get(target) if isinstance(target, torch._ops.OpOverload) else None
        if decomposition is not None:
            with torch.inference_mode(False):
                return _derive(replace(bsym, symbol=replace(bsym.symbol, target=decomposition)), requires_grad_names)
        error = Underivable("PyTorch has no derivative of this operation")
        error.missing_formula = bsym
        raise error
    return derivation


def is_symbolic_and_empty(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol has an input tensor without elements, and inputs with symbolic sizes."""
    shapes = [proxy.shape for proxy in bsym.inputs if isinstance(proxy, TensorProxy)]
    is_empty = any(isinstance(size, int) and not size for shape in shapes for size in shape)
    return is_empty and environment_of(bsym.inputs) is not None


def _require_differentiable_at_hints(bsym: BoundSymbol, requires_grad_names: frozenset[str]) -> None:
    """Raise `Underivable` if the bound symbol has no backward for the sizes of the traced call.

    For symbolic sizes, PyTorch decomposes some operations, such as bilinear interpolation. The decomposition accepts
    tensors without elements, although PyTorch's kernels and their derivative formulas refuse such tensors.
    """
    if any(operation.returns_number for operation in bsym.at_level("aten")):
        return
    derivation = _derive(at_hints(bsym), requires_grad_names)
    if derivation is not None:
        derivation.vjp(derivation.results)


def at_hints(bsym: BoundSymbol) -> BoundSymbol:
    """Return the bound symbol with the sizes and numbers of the traced call (the hints), without inner operations."""

    def constant(leaf: object) -> Any:
        if isinstance(leaf, NumberProxy):
            return leaf.value.node.hint if hasattr(leaf.value, "node") else leaf.value
        if not isinstance(leaf, TensorProxy):
            return leaf
        return replace(leaf, shape=tuple(map(hint_of, leaf.shape)), stride=tuple(map(hint_of, leaf.stride)))

    args, kwargs, output = replace_leaves((bsym.args, dict(bsym.kwargs), bsym.output), constant)
    return replace(bsym, args=args, kwargs=kwargs, output=output, subsymbols=())


def backward_of(bsym: BoundSymbol, requires_grad_names: frozenset[str]) -> Sequence[BoundSymbol] | None:
    """Return the operations of a bound symbol's backward for cotangents of all results; None if there is none."""
    try:
        derivation = derive(bsym, requires_grad_names)
        return None if derivation is None else derivation.vjp(derivation.results).bsyms
    except Underivable:
        return None


def is_differentiable_proxy(proxy: Proxy) -> bool:
    """Whether autograd would track a result with this metadata: a tensor of real or complex numbers."""
    return isinstance(proxy, TensorProxy) and (proxy.dtype.is_floating_point or proxy.dtype.is_complex)


def _lacks_formula(output: torch.Tensor) -> bool:
    """Whether PyTorch has no derivative of the operation that made a tensor."""
    return output.grad_fn is not None and output.grad_fn.name().endswith("NotImplemented")


def _derive(bsym: BoundSymbol, requires_grad_names: frozenset[str]) -> RecordedDerivation | None:
    """Return the derivation of a bound symbol from a run under autograd on fakes; None if autograd tracks no result.

    The fakes of the inputs in `requires_grad_names` are leaves that require gradients. They have real or complex
    dtypes, because autograd tracks only such tensors, so `requires_grad_` accepts them. The caller must leave inference
    mode, in which autograd records nothing.
    """
    mode, tape = new_mode(environment_of((*bsym.inputs, *bsym.outputs)), estimates_sizes=True), Tape("%s")
    tensors = [proxy for proxy in bsym.inputs if isinstance(proxy, TensorProxy)]
    fakes: dict[str, torch.Tensor] = {}
    with mode:
        for proxy in tensors:
            if len(proxy.stride) != len(proxy.shape):
                raise Underivable("it takes a sparse tensor")
            fake = empty(proxy)
            fakes[proxy.name] = fake.requires_grad_(True) if proxy.name in requires_grad_names else fake
            tape.bind(fakes[proxy.name], proxy)
    output = evaluate_on_tape(bsym, fakes, mode, tape)
    if any(fake.requires_grad and name not in requires_grad_names for name, fake in fakes.items()):
        raise Underivable("it writes values that need a gradient to a tensor that needs none")
    results: dict[str, tuple[TensorProxy, torch.Tensor]] = {}
    for proxy, tensor in pairs_of(bsym.output, output):
        tape.bind_result(tensor, proxy)
        if tensor.requires_grad:
            results.setdefault(proxy.name, (proxy, tensor))
    if not results:
        return None
    differentiated_inputs = tuple(proxy for proxy in tensors if proxy.name in requires_grad_names)
    return RecordedDerivation(
        bsym=bsym,
        differentiated_inputs=differentiated_inputs,
        results=tuple(proxy for proxy, _ in results.values()),
        bsyms=tuple(tape.bsyms),
        mode=mode,
        tape=tape,
        inputs=tuple(fakes[proxy.name] for proxy in differentiated_inputs),
        outputs=tuple(tensor for _, tensor in results.values()),
    )


def evaluate_with_rule(bsym: BoundSymbol, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Call the target of a bound symbol, or its rule, on tensors given by the names of its inputs; return the result.

    The target cannot run if it reads a number from a constant tensor, because the constant is a fake without data here.
    Then the recorded operations of the bound symbol run instead, which contain the number.
    """
    if not all(isinstance(proxy, TensorProxy | NumberProxy) for proxy in bsym.inputs):
        raise Underivable("it takes an argument that is not a tensor")
    values: dict[str, Any] = {p.name: p.value for p in bsym.inputs if isinstance(p, NumberProxy)} | dict(tensors)
    operations = list(bsym.at_level("aten"))
    if has_derivative_rule(bsym) or not any(operation.returns_number for operation in operations):
        return evaluate_bound_symbol(bsym, values, call_with_rule)
    evaluate((operation for operation in operations if not operation.returns_number), values)
    return replace_leaves(bsym.output, lambda leaf: values[leaf.name] if isinstance(leaf, Proxy) else leaf)


def call_with_rule(bsym: BoundSymbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the rule of a bound symbol if it has one, and otherwise its target."""
    function, arguments, named = for_all_sizes(target_of(bsym), args, kwargs)
    return function(*arguments, **named)


def evaluate_on_tape(bsym: BoundSymbol, fakes: Mapping[str, torch.Tensor], mode: FakeTensorMode, tape: Tape) -> Any:
    """Run a bound symbol on fakes given by the names of its inputs, and record its aten operations.

    Return the result.
    """
    try:
        with (
            torch.enable_grad(),
            torch._C._DisableAutocast(),
            attempt_without_data(),
            mode,
            tape,
            calls_for_all_sizes(bsym),
        ):
            return evaluate_with_rule(bsym, fakes)
    except Underivable:
        raise
    except Exception as error:  # the user's operators may raise any exception
        raise Underivable(f"it does not run without data: {type(error).__name__}: {first_line(error)}") from error


def calls_for_all_sizes(bsym: BoundSymbol) -> AbstractContextManager[Any]:
    """Return a context in which a call with symbolic sizes records operations that are valid for all sizes."""
    symbolic = environment_of((*bsym.inputs, *bsym.outputs)) is not None
    return CallsForAllSizes() if symbolic and bsym.symbol.level != "aten" else nullcontext()


def bsyms_for(bsyms: Sequence[BoundSymbol], gradients: Sequence[TensorProxy | None]) -> list[BoundSymbol]:
    """Return the bound symbols that `gradients` depend on, and all bound symbols that write, communicate or check.

    No write is dropped, because a write may go to a view of a tensor that another bound symbol reads. A check, such as
    that of a solver for a singular matrix, raises eager's error.
    """
    read = {proxy.name for proxy in gradients if proxy is not None}
    live: list[BoundSymbol] = []
    for bsym in reversed(bsyms):
        has_effect = bsym.mutates or bsym.communicates or is_check(bsym.symbol.target)
        if has_effect or any(proxy.name in read for proxy in bsym.outputs):
            live.append(bsym)
            read |= {proxy.name for proxy in bsym.inputs}
    return live[::-1]


def add_gradients(left: TensorProxy, right: TensorProxy, name: str) -> BoundSymbol:
    """Return the bound symbol that adds two gradients."""
    environment = environment_of((left, right))
    total = (
        _cached_sum(left.with_name(""), right.with_name(""))
        if environment is None
        else _sum_of_gradients(left, right, environment)
    )
    total = total.with_name(name)
    return BoundSymbol(symbol_of(torch.ops.aten.add.Tensor), (left, right), {}, total)


@lru_cache(maxsize=1024)
def _cached_sum(left: TensorProxy, right: TensorProxy) -> TensorProxy:
    return _sum_of_gradients(left, right, None)


def _sum_of_gradients(left: TensorProxy, right: TensorProxy, environment: TraceShapeEnv | None) -> TensorProxy:
    with new_mode(environment):
        return tensor_proxy("", torch.ops.aten.add.Tensor(empty(left), empty(right)))
