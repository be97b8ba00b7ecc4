"""Calls of a compiled function within `torch.vmap` and derivatives of `torch.func`, which compile what it is there.

A call is a `torch.autograd.Function` to PyTorch. Beneath all transforms it is a call of a program; of a batch it is
one of a program for batches, and its derivatives are programs that compute the function once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch._functorch.pyfunctorch import (
    FunctionalizeInterpreter,
    coerce_cinterpreter,
)
from torch._functorch.utils import unwrap_dead_wrappers
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from thunder_core.backend.runtime.tracers import callers_line
from thunder_core.foundation.errors import NotTraceable
from thunder_core.tracing.library.transformed_calls import is_differentiable

functorch: Any = torch._C._functorch
WRITES, DRAWS = "writes to its arguments", "draws random numbers"
FIX = "compile the function that calls the transform, or transform the function before compiling it"


def is_within_transforms() -> bool:
    """Whether the innermost transform that is at work in this thread makes batches or derivatives."""
    innermost = functorch.peek_interpreter_stack()
    return innermost is not None and not isinstance(coerce_cinterpreter(innermost), FunctionalizeInterpreter)


class CompiledFunctionLike(Protocol):
    """A compiled function; it `acts` if the program of its latest call writes to objects of the user's."""

    @property
    def acts(self) -> bool:
        """Whether it does."""

    def call(self, args: Any, kwargs: Any) -> Any:
        """Call the function."""


@dataclass(eq=False)
class TransformedCall:
    """One call: its nested arguments as leaves and structure, and what the function gave when it was called last.

    `transformed(name)` gives the compiled function of the function that `runtime.library.transformed_calls` makes of
    it.
    """

    compiled: CompiledFunctionLike
    transformed: Callable[[str], CompiledFunctionLike]
    leaves: list[Any]
    structure: TreeSpec
    output: list[Any] = field(default_factory=list)
    output_structure: TreeSpec | None = None
    refusal: str = ""  # what it does that it must not do once more
    first_passed: int = 0  # the level from which on none has a batch of the arguments

    def run(self) -> Any:
        """Call the function within the transforms that are at work."""
        levels = [level.key() for level in functorch.get_interpreter_stack() or ()]
        results = iter(operation_of(self).apply(*filter(is_tensor, self.leaves)))  # type: ignore[no-untyped-call]
        if functorch.TransformType.Vmap in levels[self.first_passed :]:
            self.require_repeatable(DRAWS)  # for each element of a batch that the arguments are no part of
        assert self.output_structure is not None
        leaves = [next(results) if is_tensor(leaf) else leaf for leaf in self.output]
        return tree_unflatten(leaves, self.output_structure)

    def filled(self, tensors: Sequence[Any], others: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
        """The nested arguments with these in the places of the tensors."""
        given = iter(tensors)
        return tree_unflatten(
            [next(given) if is_tensor(leaf) else others(leaf) for leaf in self.leaves], self.structure
        )

    def flat(
        self, compiled: CompiledFunctionLike, args: Any, kwargs: Any, given: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """The tensors of a result, of which none is one that was given; what the call did besides is noted."""
        versions, drawn = versions_of(given), random_states()
        self.output, self.output_structure = tree_flatten(compiled.call(args, kwargs))
        if versions != versions_of(given):
            self.refusal = WRITES
        elif any(not torch.equal(*pair) for pair in zip(drawn, random_states(), strict=True)):
            self.refusal = DRAWS
        elif compiled.acts:
            self.refusal = "writes to objects that are not its arguments"
        tensors = filter(is_tensor, self.output)
        return tuple(leaf.view_as(leaf) if any(leaf is one for one in given) else leaf for leaf in tensors)

    def beneath(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the function on tensors of no transform."""
        args, kwargs = self.filled(tensors)
        return self.flat(self.compiled, args, kwargs, tensors)

    def of_batch(self, info: Any, in_dims: Sequence[int | None], *tensors: torch.Tensor) -> Any:
        """Call the function for all elements of a batch; gives the results, and their batch dimensions."""
        args, kwargs = self.filled(tensors)
        dims = self.filled(in_dims, lambda leaf: None)
        arguments = (args, kwargs, tuple(dims), info.randomness)
        self.first_passed = functorch.get_dynamic_layer_stack_depth() + 1
        results = self.flat(self.transformed("batched"), arguments, {}, tensors)
        return results, (0,) * len(results)

    def gradients(self, tensors: Sequence[torch.Tensor], gradients: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of all tensors among the arguments, for those of all tensors among the results."""
        self.require_repeatable()
        tensors, gradients = unwrap_dead_wrappers(tuple(tensors)), unwrap_dead_wrappers(tuple(gradients))
        outputs = filter(is_tensor, self.output)
        given = tuple(one for one, output in zip(gradients, outputs, strict=True) if is_differentiable(output))
        found = iter(self.transformed("pulled_back").call((*self.filled(tensors), given), {}))
        return tuple(next(found) if is_differentiable(tensor) else None for tensor in tensors)

    def tangents(self, tensors: Sequence[torch.Tensor], tangents: Sequence[Any]) -> tuple[Any, ...]:
        """The tangents of all tensors among the results, for those of all tensors among the arguments."""
        self.require_repeatable()
        pairs = [(one, tensor) for one, tensor in zip(tangents, tensors, strict=True) if is_differentiable(tensor)]
        given = tuple(torch.zeros_like(tensor) if one is None else one for one, tensor in pairs)
        found = iter(self.transformed("pushed_forward").call((*self.filled(tensors), given), {}))
        return tuple(next(found) if is_differentiable(output) else None for output in filter(is_tensor, self.output))

    def require_repeatable(self, of: str = "") -> None:
        """Raise `NotTraceable` where the function would do something else when it is computed once more."""
        if self.refusal and of in ("", self.refusal):
            raise NotTraceable(
                f"a compiled function that {self.refusal} was called inside a torch.func transform that repeats it",
                fix=FIX,
                where=callers_line(),
            )


def operation_of(call: TransformedCall) -> type[torch.autograd.Function]:
    """The call as a function that PyTorch's transforms take apart."""

    class CompiledCall(torch.autograd.Function):
        @classmethod
        def apply(cls, *tensors: Any) -> Any:
            within = torch._C._are_functorch_transforms_active()
            return super().apply(*tensors) if within else call.beneath(*tensors)  # type: ignore[no-untyped-call]

        @staticmethod
        def forward(*tensors: Any) -> Any:
            return call.beneath(*tensors)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            call.require_repeatable(WRITES)  # which autograd has not seen
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)
            ctx.mark_non_differentiable(*(one for one in output if not is_differentiable(one)))

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return call.gradients(ctx.saved_tensors, gradients)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            return call.tangents(ctx.saved_tensors, tangents)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *tensors: Any) -> Any:
            return call.of_batch(info, in_dims, *tensors)

    return CompiledCall


def is_tensor(leaf: Any) -> bool:
    """Whether a part of arguments or results is a tensor."""
    return isinstance(leaf, torch.Tensor)


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The counts of writes to tensors; those of inference mode do not tell."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def random_states() -> list[torch.Tensor]:
    """The states of PyTorch's random number generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *cuda]


def transformed_state(subject: Any) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module, by their names, where a transform wraps one of them."""
    if not isinstance(subject, torch.nn.Module):
        return {}
    named = (subject.named_parameters, subject.named_buffers)
    state = {name: tensor for tensors in named for name, tensor in tensors(remove_duplicate=False)}
    return state if any(map(functorch.is_functorch_wrapped_tensor, state.values())) else {}
