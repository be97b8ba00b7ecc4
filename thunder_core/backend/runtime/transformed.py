"""Calls of a compiled function within `torch.vmap` and derivatives of `torch.func`, for which variants are compiled.

To PyTorch, a call is a `torch.autograd.Function`. Below all transforms, the call runs a program. For a batch, it runs a
program for batches. Its derivatives are programs that compute the function again.
"""

from __future__ import annotations

import re
import threading
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
FIX = "compile the function that calls the transform, or transform the function first and compile the result"


def is_within_transforms() -> bool:
    """Whether the innermost active transform of this thread makes batches or derivatives."""
    innermost = functorch.peek_interpreter_stack()
    return innermost is not None and not isinstance(coerce_cinterpreter(innermost), FunctionalizeInterpreter)


class Beneath(threading.local):
    """The number of active calls of this thread that run beneath transforms, on tensors without transforms."""

    calls = 0


BENEATH = Beneath()


class CompiledFunctionLike(Protocol):
    """A compiled function or a variant of it."""

    @property
    def writes_to_objects(self) -> bool:
        """Whether the program of the latest call writes to objects of the user."""

    @property
    def written_origins(self) -> frozenset[str]:
        """The paths of the tensors from outside that the program of the latest call writes to."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function."""


@dataclass(eq=False)
class TransformedCall:
    """A call: its nested arguments as leaves and structure, and the output of its latest run.

    `transformed(name)` returns the compiled variant that `runtime.library.transformed_calls` makes under that name.
    """

    compiled: CompiledFunctionLike
    transformed: Callable[[str], CompiledFunctionLike]
    leaves: list[Any]
    structure: TreeSpec
    output: list[Any] = field(default_factory=list)
    output_structure: TreeSpec | None = None
    refusal: str = ""  # the effect that forbids running the function again
    has_written_arguments: bool = False  # by writes that autograd does not count; others are refused
    first_level_without_arguments: int = 0  # the index of the first level that wraps no argument

    def run(self) -> Any:
        """Call the function within the active transforms."""
        levels = [level.key() for level in functorch.get_interpreter_stack() or ()]
        results = iter(operation_of(self).apply(*filter(is_tensor, self.leaves)))  # type: ignore[no-untyped-call]
        if functorch.TransformType.Vmap in levels[self.first_level_without_arguments :]:
            self.require_repeatable(DRAWS)  # eager PyTorch would draw other numbers for each element of the batch
        assert self.output_structure is not None
        leaves = [next(results) if is_tensor(leaf) else leaf for leaf in self.output]
        return tree_unflatten(leaves, self.output_structure)

    def fill(self, tensors: Sequence[Any], others: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
        """Return the nested arguments with their tensors replaced by `tensors`."""
        remaining = iter(tensors)
        return tree_unflatten(
            [next(remaining) if is_tensor(leaf) else others(leaf) for leaf in self.leaves], self.structure
        )

    def flat(
        self,
        compiled: CompiledFunctionLike,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        transformed: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Call a compiled function; return the tensors of its result, and record the call's effects.

        A result that is an argument is returned as a view.
        """
        versions, states = versions_of(transformed), random_states()
        BENEATH.calls += 1
        try:
            self.output, self.output_structure = tree_flatten(compiled.call(args, kwargs))
        finally:
            BENEATH.calls -= 1
        written = compiled.written_origins
        if versions != versions_of(transformed):
            self.refusal = WRITES
        elif any(not torch.equal(*pair) for pair in zip(states, random_states(), strict=True)):
            self.refusal = DRAWS
        elif compiled.writes_to_objects or not all(map(is_of_argument, written)):
            self.refusal = "writes to objects that are not its arguments"
        self.has_written_arguments = bool(written)
        tensors = filter(is_tensor, self.output)
        return tuple(leaf.view_as(leaf) if any(leaf is tensor for tensor in transformed) else leaf for leaf in tensors)

    def beneath(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the function on tensors without transforms."""
        args, kwargs = self.fill(tensors)
        return self.flat(self.compiled, args, kwargs, tensors)

    def of_batch(self, info: Any, in_dims: Sequence[int | None], *tensors: torch.Tensor) -> Any:
        """Call the function for all elements of a batch; return the results and their batch dimensions."""
        args, kwargs = self.fill(tensors)
        dims = self.fill(in_dims, lambda leaf: None)
        arguments = (args, kwargs, tuple(dims), info.randomness)
        self.first_level_without_arguments = functorch.get_dynamic_layer_stack_depth() + 1
        results = self.flat(self.transformed("batch_function"), arguments, {}, tensors)
        return results, (0,) * len(results)

    def gradients(
        self, tensors: Sequence[torch.Tensor], gradients: Sequence[Any], is_needed: Sequence[bool]
    ) -> tuple[Any, ...]:
        """Return the gradients of the needed tensors among the arguments, for the gradients of the result tensors."""
        self.require_repeatable()
        tensors, gradients = unwrap_dead_wrappers(tuple(tensors)), unwrap_dead_wrappers(tuple(gradients))
        outputs = filter(is_tensor, self.output)
        cotangents = tuple(
            gradient for gradient, output in zip(gradients, outputs, strict=True) if is_differentiable(output)
        )
        flags = tuple(map(is_needed_tensor, tensors, is_needed))
        arguments = self.fill(self.unwritten(tensors, flags))
        results = iter(self.transformed("pullback_of").call((*arguments, cotangents, flags), {}))
        return tuple(next(results) if flag else None for flag in flags)

    def tangents(self, tensors: Sequence[torch.Tensor], tangents: Sequence[Any]) -> tuple[Any, ...]:
        """Return the tangents of all tensors among the results, for the tangents of the argument tensors."""
        self.require_repeatable()
        flags = tuple(map(is_needed_tensor, tensors, (tangent is not None for tangent in tangents)))
        directions = tuple(tangent for tangent, flag in zip(tangents, flags, strict=True) if flag)
        arguments = self.fill(self.unwritten(tensors, flags))
        results = iter(self.transformed("pushforward_of").call((*arguments, directions, flags), {}))
        return tuple(next(results) if is_differentiable(output) else None for output in filter(is_tensor, self.output))

    def unwritten(self, tensors: Sequence[torch.Tensor], is_needed: Sequence[bool]) -> list[torch.Tensor]:
        """Return the tensors for a program that runs the function again, with copies of written tensors.

        Calls with writes that autograd counts are refused. Autograd does not count the writes to the running statistics
        of a batch normalization. The second run must not repeat these writes.
        """
        if not self.has_written_arguments:
            return list(tensors)
        return [tensor if flag else tensor.clone() for tensor, flag in zip(tensors, is_needed, strict=True)]

    def require_repeatable(self, of: str = "") -> None:
        """Raise `NotTraceable` if running the function again would have another effect."""
        if self.refusal and of in ("", self.refusal):
            raise NotTraceable(
                f"a compiled function that {self.refusal} was called inside a torch.func transform that repeats it",
                fix=FIX,
                where=callers_line(),
            )


def operation_of(call: TransformedCall) -> type[torch.autograd.Function]:
    """Return the call as an autograd function that PyTorch's transforms can differentiate and batch."""

    class CompiledCall(torch.autograd.Function):
        @classmethod
        def apply(cls, *tensors: Any) -> Any:
            within = torch._C._are_functorch_transforms_active()
            return super().apply(*tensors) if within else call.beneath(*tensors)  # type: ignore[no-untyped-call]

        @staticmethod
        def forward(*tensors: Any) -> tuple[torch.Tensor, ...]:
            return call.beneath(*tensors)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            call.require_repeatable(WRITES)  # autograd has not seen the writes
            ctx.set_materialize_grads(False)  # None as a tangent shows that the function is not differentiated for it
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)
            ctx.mark_non_differentiable(*(tensor for tensor in output if not is_differentiable(tensor)))

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return call.gradients(ctx.saved_tensors, gradients, ctx.needs_input_grad)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            return call.tangents(ctx.saved_tensors, tangents)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *tensors: Any) -> Any:
            return call.of_batch(info, in_dims, *tensors)

    return CompiledCall


def is_tensor(leaf: object) -> bool:
    """Whether a leaf of arguments or results is a tensor."""
    return isinstance(leaf, torch.Tensor)


def is_of_argument(origin: str) -> bool:
    """Whether the path of an input of a program starts at the arguments."""
    return re.match(r"(args|kwargs)\b", origin) is not None


def is_needed_tensor(tensor: torch.Tensor, is_needed: bool) -> bool:
    """Whether a derivative for a tensor is needed, and the tensor is differentiable."""
    return is_needed and is_differentiable(tensor)


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the write counts (versions) of tensors; 0 for inference tensors, which have none."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def random_states() -> list[torch.Tensor]:
    """Return the states of PyTorch's random number generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *cuda]


def transformed_state(subject: object) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module by name if a transform wraps any of them; else empty."""
    if not isinstance(subject, torch.nn.Module):
        return {}
    named = (subject.named_parameters, subject.named_buffers)
    state = {name: tensor for tensors in named for name, tensor in tensors(remove_duplicate=False)}
    return state if any(map(functorch.is_functorch_wrapped_tensor, state.values())) else {}
