"""`grad`, `value_and_grad`, `vjp` and `jvp`, with the semantics of `torch.func`, compiled by `jit`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import MethodType
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.backend.runtime.module import programs_of
from thunder_core.compilation.compiler import Compiler, bind_compiler, jit, specializations_of
from thunder_core.compilation.gradients.subjects import Gradient, JvpFunction
from thunder_core.compilation.gradients.trees import (
    Argnums,
    differentiable_leaves,
    require_differentiable,
    require_same,
    split_aux,
    with_arguments,
)
from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import WrongInputs
from thunder_core.tracing.capture.torch_facts.graph import graph_of, leaves_of

Executors = Sequence[str | Executor]
MAX_CACHED = 128  # the number of cached derivatives; a cached derivative is not compiled again


def grad(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *, executors: Executors | None = None
) -> Callable[..., Any]:
    """Return a compiled function that computes the gradient of a scalar function; see `torch.func.grad`.

    `argnums` are the positions of the arguments to differentiate, each a tensor or a tree of tensors. For a tuple of
    positions, the result is a tuple of gradients. With `has_aux`, the function returns a pair, and its second item is
    returned after the gradient. Forward and backward are one program. If `jit` compiled the function, the derivative
    has the same settings. Otherwise, eager PyTorch runs the derivative, unless `executors` are given.

    Raises `WrongInputs` for arguments that cannot be differentiated. Raises `NotDifferentiable`, with the source line,
    if the function does not return a scalar or has an operation without a derivative.

    >>> import torch
    >>> grad(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]))
    tensor([ 3., 12.])
    >>> grad(grad(torch.sin))(torch.tensor(0.0))
    tensor(-0.)
    """
    return _gradient(function, argnums, has_aux, False, executors)


def value_and_grad(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *, executors: Executors | None = None
) -> Callable[..., Any]:
    """Return a compiled function that returns `value, gradient` of a scalar function.

    With `has_aux`, the compiled function returns `(value, aux), gradient`. Arguments and errors are those of `grad`.

    >>> import torch
    >>> value_and_grad(lambda x: (x**2).sum())(torch.tensor([1.0, 2.0]))
    (tensor(5.), tensor([2., 4.]))
    """
    return _gradient(function, argnums, has_aux, True, executors)


def jvp(
    function: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    has_aux: bool = False,
    executors: Executors | None = None,
) -> Any:
    """Return the results of a function and their tangents, given tangents of its arguments; see `torch.func.jvp`.

    One program computes both, with PyTorch's forward-mode derivatives, or by differentiating the backward of an
    operation without a forward-mode derivative. With `has_aux`, the function returns a pair, and its second item is
    returned as the third result. The tangents have the structure, shapes and dtypes of the primals. Raises
    `WrongInputs` for other tangents, and `NotDifferentiable` for results that are not tensors.

    >>> import torch
    >>> jvp(lambda x: x**2, (torch.tensor(3.0),), (torch.tensor(1.0),))
    (tensor(9.), tensor(6.))
    """
    if not (isinstance(primals, tuple) and isinstance(tangents, tuple)):
        raise WrongInputs(
            "jvp: the primals and the tangents must be tuples, one item for each argument", fix="write (x,), (t,)"
        )
    return _compile(JvpFunction, function, (has_aux,), executors)(primals, tangents)


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False, executors: Executors | None = None) -> Any:
    """Return the results of a function, and a pullback from cotangents of the results to cotangents of the arguments.

    As in `torch.func.vjp`, the pullback can be called several times, and can be differentiated. The forward and the
    backward are two programs; the backward reads the tensors that the forward saved. With `has_aux`, the function
    returns a pair, and its second item is returned as the third result.

    >>> import torch
    >>> output, pull = vjp(torch.sin, torch.tensor(0.0))
    >>> pull(torch.tensor(2.0))
    (tensor(2.),)
    """
    leaves, structure = differentiable_leaves(primals, "vjp")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return torch.func.vjp(_compile(None, function, (), executors), *primals, has_aux=has_aux)
    tracked_by_caller = [torch.is_grad_enabled() and leaf.requires_grad for leaf in leaves]
    with torch.inference_mode(False), torch.enable_grad():
        pairs = zip(leaves, tracked_by_caller, strict=True)
        starts = [leaf.view_as(leaf) if tracked else _leaf(leaf) for leaf, tracked in pairs]
        compiled = _compile(None, function, (), executors)
        output, aux = split_aux(compiled(*tree_unflatten(starts, structure)), has_aux, "vjp", None)
    outputs = require_differentiable(tree_flatten(output)[0], "vjp", None)
    is_tracked = any(tracked_by_caller) or _depends_on_others((*outputs, *tree_leaves(aux)), starts)

    def pull(cotangents: object, retain_graph: bool = True, create_graph: bool | None = None) -> tuple[Any, ...]:
        cotangents_taken = require_same(cotangents, output, ("the cotangents", "the outputs"), "vjp")
        is_pull_tracked = is_tracked or any(cotangent.requires_grad for cotangent in cotangents_taken)
        create_graph = torch.is_grad_enabled() and is_pull_tracked if create_graph is None else create_graph
        pairs = [pair for pair in zip(outputs, cotangents_taken, strict=True) if pair[0].requires_grad]
        pulled: Sequence[torch.Tensor | None] = [None] * len(starts)
        if pairs:
            results, gradients = zip(*pairs, strict=True)
            with torch.inference_mode(False):
                pulled = torch.autograd.grad(results, starts, gradients, retain_graph, create_graph, allow_unused=True)
        filled = [
            torch.zeros_like(leaf) if cotangent is None else cotangent
            for cotangent, leaf in zip(pulled, leaves, strict=True)
        ]
        answer: tuple[Any, ...] = tree_unflatten(filled, structure)
        return answer

    if not is_tracked:
        output, aux = tree_map(partial(_detach_leaf, starts), (output, aux))
    output, aux = with_arguments((output, aux), starts, leaves)
    return (output, pull, aux) if has_aux else (output, pull)


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Return a leaf of autograd's graph with the values of a tensor. A tensor made in inference mode is copied."""
    return (tensor.clone() if tensor.is_inference() else tensor.detach()).requires_grad_(True)


def _detach_leaf(starts: Sequence[torch.Tensor], leaf: object) -> object:
    """Return a leaf of a result, detached from autograd's graph if it is a tensor other than `starts`."""
    if not isinstance(leaf, torch.Tensor) or any(leaf is start for start in starts):
        return leaf
    return leaf.detach()


def _depends_on_others(results: Sequence[object], starts: Sequence[torch.Tensor]) -> bool:
    """Whether, in autograd's graph, a result depends on a tensor other than `starts` that requires a gradient."""
    tensors = [result for result in results if isinstance(result, torch.Tensor)]
    leaves = leaves_of(tensors, graph_of(tensors))
    return any(all(leaf is not start for start in starts) for leaf in leaves)


def _gradient(
    function: Callable[..., Any], argnums: Argnums, has_aux: bool, with_value: bool, executors: Executors | None
) -> Callable[..., Any]:
    compiled: Callable[..., Any] = _compile(Gradient, function, (argnums, has_aux, with_value), executors)
    return compiled


def _compile(kind: object, function: object, options: tuple[Hashable, ...], executors: Executors | None) -> Any:
    """Return a compiled subject, cached by function and options.

    `kind` is its class; None means the function itself.
    """
    if not callable(function):
        raise WrongInputs(
            f"a derivative needs a function or a module, not {object_of_class(type(function))}",
            fix="pass a function or a module",
        )
    executor_tuple = None if executors is None else tuple(executors)
    try:
        return _cached_compile(kind, FunctionKey(function), options, executor_tuple)
    except TypeError:  # an option that cannot be hashed
        return _cached_compile.__wrapped__(kind, FunctionKey(function), options, executor_tuple)


class FunctionKey:
    """A key of the cache that is equal only for the same function object, or for the same method of the same object.

    The functions themselves cannot be keys: callables of a class with an `__eq__` may be equal and compute different
    results.
    """

    def __init__(self, function: object) -> None:
        self.function = function
        parts = (function.__self__, function.__func__) if isinstance(function, MethodType) else (function,)
        self._identity = tuple(map(id, parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionKey) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


@lru_cache(maxsize=MAX_CACHED)
def _cached_compile(
    kind: object, same: FunctionKey, options: tuple[Hashable, ...], executors: tuple[str | Executor, ...] | None
) -> Any:
    function = same.function
    specializations = programs_of(function)
    if isinstance(specializations, Specializations):
        compiled = bind_compiler(
            _settings(specializations, executors), _subject(kind, specializations.subject, options)
        )
        specializations_of(compiled).derivative_of = function
    else:
        compiled = jit(_subject(kind, function, options), executors=executors or ("torch",))
        specializations_of(compiled).uses_callers_settings = executors is None
    return compiled


def _subject(kind: Any, function: Any, options: tuple[Hashable, ...]) -> Any:
    return function if kind is None else kind(function, *options).call


def _settings(specializations: Specializations, executors: tuple[str | Executor, ...] | None) -> Compiler:
    """Return the compiler of a derivative: the compiler of the function, with `executors` if given.

    If the function was compiled as `functional`, the derivative is not: it guards values outside of its arguments.
    """
    settings: Compiler = specializations.compiler.settings
    settings = replace(settings, options=replace(settings.options, functional=False))
    return settings if executors is None else replace(settings, executors=tuple(map(find_executor, executors)))
