"""Operators: executors of one function each, which replaces a function of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_map

from thunder_core.backend.claiming.executor import Executor, Implementation
from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import BadRecipe, ThunderError, WrongInputs
from thunder_core.tracing.capture.fakes.fake import empty, new_mode
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import TensorProxy, environment_of
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.tree import replace_leaves


@dataclass(frozen=True)
class Operator(Executor):
    """An executor that replaces one function of PyTorch by another function with the same arguments.

    `function` is the function that programs call (`torch.nn.functional.silu`). `implementation` is Python code or
    launches kernels, and must return tensors of the same shapes, strides, dtypes and devices as `function`. Thunder
    checks this by a run on tensors without data; for an implementation that cannot run on such tensors, `meta` is run
    instead. Calls that `supports(bsym)` refuses, and calls that write to an argument, are left to other executors.

    `derivative` is the backward of the implementation, as in `register_derivative`. It takes a context and the
    gradients of the results, and returns one gradient, or None, for each tensor among the arguments.
    `setup_context(ctx, args, kwargs, output)` saves values in the context. Without `derivative`, PyTorch's own
    derivative is used.

    Raises `WrongInputs` for an argument that cannot be called. Tracing a program raises `BadRecipe` if the structure or
    the metadata of the operator's results differs from `function`. The executor `debug` also compares values.

    >>> import torch
    >>> import thunder_core as thunder
    >>> def fast_silu(input, inplace=False):
    ...     return input * torch.sigmoid(input)
    >>> operator = Operator(torch.nn.functional.silu, fast_silu)
    >>> operator.claims
    'torch.nn.functional.silu'
    >>> compiled = thunder.jit(torch.nn.SiLU(), executors=[operator])
    >>> x = torch.ones(2)
    >>> torch.equal(compiled(x), x * torch.sigmoid(x))
    True
    """

    symbolic_sizes: ClassVar[bool] = True
    function: Callable[..., Any]
    implementation: Callable[..., Any]
    supports: Callable[[BoundSymbol], bool] | None = None
    meta: Callable[..., Any] | None = None
    derivative: Callable[..., Any] | None = None
    setup_context: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        optional = ("supports", "meta", "derivative", "setup_context")
        for name in ("function", "implementation", *optional):
            called = getattr(self, name)
            if not callable(called) and not (called is None and name in optional):
                raise WrongInputs(
                    f"the {name} of an operator is {called!r:.60}, which cannot be called",
                    fix="pass functions: Operator(torch.nn.functional.silu, my_silu)",
                )

    @property
    def name(self) -> str:  # type: ignore[override]
        """The dotted name of the implementation."""
        qualified = getattr(self.implementation, "__qualname__", type(self.implementation).__qualname__)
        return f"{self.implementation.__module__}.{qualified}"

    @property
    def claims(self) -> str:
        """The name of PyTorch's function."""
        return symbol_of(self.function).name

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """Return the bound symbol with the implementation in place of PyTorch's function."""
        if bsym.symbol != symbol_of(self.function):
            return None
        implementation = Implementation(Symbol(self.name, self.implementation), self.supports or _supports_all)
        if not implementation.is_for(bsym):
            return None
        self._require_same_metadata(bsym)
        return replace(bsym, symbol=implementation.symbol, executor=self.name)

    def _require_same_metadata(self, bsym: BoundSymbol) -> None:
        environment = environment_of((*bsym.inputs, *bsym.outputs))
        if environment is not None and self.meta is None:
            return  # a run on fake tensors would guard the sizes that the implementation reads
        try:
            with new_mode(environment), torch.no_grad():
                args, kwargs = replace_leaves((bsym.args, dict(bsym.kwargs)), _without_data)
                result = (self.meta or self.implementation)(*args, **kwargs)
                actual, expected = tree_map(_describe, result), tree_map(_describe, _without_data_in(bsym.output))
        except Exception as error:
            message = error.what if isinstance(error, ThunderError) else error
            raise BadRecipe(
                f"the operator {self.name} fails on tensors without data: {type(error).__name__}: {message}",
                fix="pass a `meta` function that returns tensors like its results",
                where=bsym.source,
            ) from error
        if actual != expected:
            raise BadRecipe(
                f"the operator {self.name} returns {actual}, but {self.claims} returns {expected}",
                fix="return the same as PyTorch's function, or refuse such calls with supports=",
                where=bsym.source,
            )


def _supports_all(_: BoundSymbol) -> bool:
    return True


def _without_data(leaf: object) -> Any:
    return empty(leaf) if isinstance(leaf, TensorProxy) else leaf


def _without_data_in(tree: object) -> Any:
    return replace_leaves(tree, _without_data)


def _describe(leaf: object) -> str:
    """Describe a result: a tensor by dtype, sizes, strides and device; by dtype and rank if sizes are symbolic."""
    if not isinstance(leaf, torch.Tensor):
        return "no tensor" if leaf is None else object_of_class(type(leaf))
    sizes = (*leaf.shape, *leaf.stride())
    if any(isinstance(size, torch.SymInt) for size in sizes):
        return f"{leaf.dtype} of {leaf.dim()} dimensions on {leaf.device}"
    return f"{leaf.dtype} {list(leaf.shape)} with strides {list(leaf.stride())} on {leaf.device}"
