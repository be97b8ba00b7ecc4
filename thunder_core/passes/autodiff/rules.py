"""Rules: derivatives that a user or an executor registers, which take precedence over PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import FunctionType
from typing import Any

import torch

from thunder_core.foundation.errors import NotDifferentiable, WrongInputs
from thunder_core.passes.autodiff.applied.object_copies import Snapshot
from thunder_core.tracing.analysis.own_derivatives import OWN_DERIVATIVES
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.capture.torch_facts.torch_versions import apply_of
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace, with_subtraces
from thunder_core.tracing.ir.tree import leaves, replace_leaves

Operation = Callable[..., Any]
SetupContext = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]

_rules: dict[Operation, Operation] = {}
_applied_classes: dict[Operation, type[torch.autograd.Function]] = {}
_live: set[Operation] = set()  # applied functions whose backward has to run after the program: "live" functions


def register_derivative(
    operation: Operation, *, setup_context: SetupContext | None = None
) -> Callable[[Operation], Operation]:
    """Return a decorator for the function that is the backward of an operation in all programs compiled later.

    The operation is the function that a program calls (`torch.nn.functional.silu`), or that an executor calls instead.
    `setup_context(ctx, args, kwargs, output)` saves values for the backward, as in `torch.autograd.Function`. The
    backward takes `ctx` and the gradients of the results, and returns one gradient, or None, for each tensor argument
    of the operation, in order. For derivatives of the derivative, the backward must consist of PyTorch operations. The
    rule applies only inside compiled programs. Raises `WrongInputs` for an operation that cannot be called.
    """
    if not callable(operation):
        raise WrongInputs(
            f"a derivative was registered for {operation!r:.60}, which cannot be called",
            fix="name the function that programs call, such as torch.nn.functional.silu",
        )

    def register(backward: Operation) -> Operation:
        _rules[operation] = _make_rule(operation, setup_context, backward)
        OWN_DERIVATIVES.add(operation)
        return backward

    return register


def _make_rule(operation: Operation, setup_context: SetupContext | None, backward: Operation) -> Operation:
    class Rule(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *tensors: torch.Tensor) -> Any:
            args, kwargs = _fill_in_tensors((args, kwargs), tensors)
            output = operation(*args, **kwargs)
            if setup_context is not None:
                setup_context(ctx, args, kwargs, output)
            return output

        @staticmethod
        def backward(ctx: object, *gradients: Any) -> Any:
            gradients_in = backward(ctx, *gradients)
            return (None, None, *(gradients_in if isinstance(gradients_in, tuple) else (gradients_in,)))

    def apply(*args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        numbers = iter(range(len(tensors)))
        blank = replace_leaves(
            (args, kwargs), lambda leaf: _NumberedTensor(next(numbers)) if isinstance(leaf, torch.Tensor) else leaf
        )
        return Rule.apply(*blank, *tensors)  # type: ignore[no-untyped-call]

    return _set_qualified_name(symbol_of(operation).name, apply)


class _NumberedTensor:
    """A placeholder for a tensor among the arguments of a rule, by the number of the tensor."""

    def __init__(self, number: int) -> None:
        self.number = number


def _fill_in_tensors(tree: object, tensors: tuple[torch.Tensor, ...]) -> Any:
    return replace_leaves(tree, lambda leaf: tensors[leaf.number] if isinstance(leaf, _NumberedTensor) else leaf)


def _set_qualified_name(name: str, function: Operation) -> Operation:
    function.__module__, _, function.__name__ = name.rpartition(".")
    function.__qualname__ = function.__name__
    return function


@cache
def operation_of(kind: type[torch.autograd.Function], *, is_live: bool = False) -> Operation:
    """Return the operation that applies a user's `torch.autograd.Function`.

    If the function returns an input unchanged, the operation returns a view of the input. The operation takes either
    the arguments of the function, or a snapshot of the arguments and the values for the snapshot. The backward of a
    live function (`is_live`) reads or writes objects that the program writes to, so it has to run after the program.
    """

    def apply(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Snapshot):
            (args, kwargs), _ = args[0].fill(args[1])
        versions = {id(leaf): leaf._version for leaf in args if isinstance(leaf, torch.Tensor)}

        def as_new_object(leaf: Any) -> Any:
            unchanged = isinstance(leaf, torch.Tensor) and versions.get(id(leaf)) == leaf._version
            return leaf.view_as(leaf) if unchanged else leaf

        return replace_leaves(apply_of(kind)(*args, **kwargs), as_new_object)

    function = _set_qualified_name(f"{kind.__module__}.{kind.__qualname__.replace('<locals>.', '')}", apply)
    OWN_DERIVATIVES.add(function)
    _applied_classes[function] = kind
    if is_live:
        _live.add(function)
    return function


def register_live(name: str, function: Operation) -> Operation:
    """Register an operation whose backward has to run after the program, set its qualified name, and return it."""
    OWN_DERIVATIVES.add(_set_qualified_name(name, function))
    _live.add(function)
    return function


def applied_class(operation: object) -> type[torch.autograd.Function] | None:
    """Return the `torch.autograd.Function` that an operation applies, or None for another operation."""
    return _applied_classes.get(operation) if isinstance(operation, FunctionType) else None


def is_live(operation: object) -> bool:
    """Whether an operation applies a `torch.autograd.Function` whose backward has to run after the program."""
    return isinstance(operation, FunctionType) and operation in _live


def target_of(bsym: BoundSymbol) -> Operation:
    """Return the rule of the function that a bound symbol calls, or the function itself if it has no rule."""
    return _rules.get(bsym.symbol.target, bsym.symbol.target)


def with_rules(trace: Trace, missing_formula: BoundSymbol | None = None) -> Trace:
    """Return the trace with rules in place of operations, for PyTorch's autograd to record.

    `missing_formula` is a bound symbol without a derivative in PyTorch: its differentiation raises an error with its
    source line.
    """
    rules = dict(_rules)
    if missing_formula is not None:
        rules[missing_formula.symbol.target] = _make_refusing_rule(missing_formula)
    return _with_each_rule(trace, rules)


def names_with_rules(trace: Trace) -> tuple[str, ...]:
    """Return the names of operations with rules in a trace and its sub-traces, in alphabetical order."""
    names: set[str] = set()

    def add_names(function: Trace) -> Trace:
        names.update(bsym.symbol.name for bsym in function.bound_symbols if bsym.symbol.target in _rules)
        for bsym in function.bound_symbols:
            with_subtraces(bsym, add_names)
        return function

    add_names(trace)
    return tuple(sorted(names))


def _with_each_rule(trace: Trace, rules: dict[Operation, Operation]) -> Trace:
    """Return the trace with rules in place of operations, also in sub-traces; the trace itself if it has none."""
    bsyms = tuple(_with_rule(bsym, rules) for bsym in trace.bound_symbols)
    is_unchanged = all(new is old for new, old in zip(bsyms, trace.bound_symbols, strict=True))
    return trace if is_unchanged else trace.having(bsyms, made_by="use derivative rules")


def _with_rule(bsym: BoundSymbol, rules: dict[Operation, Operation]) -> BoundSymbol:
    bsym = with_subtraces(bsym, lambda function: _with_each_rule(function, rules))
    rule = rules.get(bsym.symbol.target)
    return bsym if rule is None else replace(bsym, symbol=Symbol(f"derivative.{rule.__name__}", rule))


def _make_refusing_rule(bsym: BoundSymbol) -> Operation:
    def backward(ctx: object, *gradients: Any) -> Any:
        raise NotDifferentiable(
            f"PyTorch has no derivative of `{bsym.symbol.name}`",
            fix="register a derivative with register_derivative",
            where=bsym.source,
        )

    return _make_rule(bsym.symbol.target, None, backward)
