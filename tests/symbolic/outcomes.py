"""The outcome of a call of a random program, compiled or in eager PyTorch, and the difference of two outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from thunder_core.foundation.errors import NotDifferentiable

LARGEST = 20_000  # the largest number of elements of a tensor, and the largest number


@dataclass(frozen=True)
class Outcome:
    """The results with their classes, the arguments after the call, shared memory, and gradients; or the error.

    `drawn` is the state of the random number generator.
    """

    error: Exception | None
    classes: Any
    results: tuple[Any, ...]
    arguments: tuple[Tensor, ...]
    sharing: tuple[tuple[int, int, int], ...]
    gradients: tuple[Any, ...]
    drawn: bytes

    @property
    def is_large(self) -> bool:
        """Whether a tensor or a number in the results is too large."""
        return any(is_large(leaf) for leaf in self.results)

    @property
    def epsilon(self) -> float:
        """The machine epsilon of the 16-bit dtypes among the results, or zero."""
        dtypes = {leaf.dtype for leaf in self.results if isinstance(leaf, Tensor)}
        return max((torch.finfo(dtype).eps for dtype in dtypes & {torch.bfloat16, torch.float16}), default=0.0)

    @property
    def is_malformed(self) -> bool:
        """Whether a tensor in the results has a negative size.

        PyTorch's `expand` does not check the sizes of tensors without elements, and its other operations refuse such a
        tensor; tracing refuses it too, with the message of eager.
        """
        return any(isinstance(leaf, Tensor) and min(leaf.shape, default=0) < 0 for leaf in self.results)


def outcome(function: Callable[..., Any], tensors: Sequence[Tensor], args: Any, kwargs: Any, grad: bool) -> Outcome:
    """Call a function on these tensors, and differentiate its results."""
    torch.manual_seed(0)
    results: Any = ()
    gradients: tuple[Any, ...] = ()
    error = None
    try:
        with torch.set_grad_enabled(grad):
            results = function(*args, **kwargs)
    except Exception as raised:
        error = raised
    leaves = tree_leaves(results)
    drawn = bytes(torch.get_rng_state().numpy())
    if error is None and not any(map(is_large, leaves)):
        try:
            gradients = gradients_of(leaves, tensors)
        except Exception as raised:
            error = raised
    shared = tuple(sharing([leaf for leaf in (*leaves, *tensors) if isinstance(leaf, Tensor)]))
    return Outcome(error, classes_of(results), tuple(leaves), tuple(tensors), shared, gradients, drawn)


def gradients_of(leaves: list[Any], tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return the gradients of the mean of squares of all results, for the tensors that require gradients."""
    ends = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    starts = [tensor for tensor in tensors if tensor.requires_grad]
    if not ends or not starts:
        return ()
    total = sum((end.double().square().mean() for end in ends), start=torch.zeros(()))
    gradients = torch.autograd.grad(total, starts, allow_unused=True)
    return tuple(None if gradient is None else gradient.nan_to_num(0, 0, 0) for gradient in gradients)


def classes_of(tree: Any) -> Any:
    """Return the classes of nested results."""
    return (type(tree), [classes_of(item) for item in tree]) if isinstance(tree, tuple | list) else type(tree)


def sharing(tensors: list[Tensor]) -> Iterator[tuple[int, int, int]]:
    """For each tensor, yield the first equal object, the first tensor with the same storage, and the storage offset."""
    objects: dict[int, int] = {}
    memories: dict[int, int] = {}
    for index, tensor in enumerate(tensors):
        memory = tensor.untyped_storage()._cdata
        same = objects.setdefault(id(tensor), index)
        yield same, memories.setdefault(memory, index), tensor.storage_offset() if tensor.numel() else 0


def is_large(leaf: Any) -> bool:
    """Whether a tensor has too many elements, or a number is too large."""
    if isinstance(leaf, Tensor):
        return leaf.numel() > LARGEST
    return isinstance(leaf, int | float) and abs(leaf) > LARGEST


def difference(
    expected: Outcome, found: Outcome, *, message: bool = True, nudged: Callable[[int], Outcome] | None = None
) -> str:
    """Describe how a compiled call differs from eager; empty if it does not. `message` compares error messages, too.

    `nudged` returns the outcome of eager PyTorch if each element of the tensors is replaced by a neighbouring number,
    chosen by a seed: rounding alone may change the gradients by as much as these outcomes differ.
    """
    if text := other_error(expected.error, found.error, message=message):
        return text
    if expected.classes != found.classes:
        return f"classes {expected.classes} became {found.classes}"
    for part in ("results", "arguments", "gradients"):
        for index, (wanted, actual) in enumerate(zip(getattr(expected, part), getattr(found, part), strict=True)):
            text = differs(wanted, actual, exact=part != "gradients")
            if text and not (part == "gradients" and is_rounding(wanted, actual, index, expected.epsilon, nudged)):
                return f"{part} {index}: {text}"
    if expected.sharing != found.sharing:
        return f"memory {expected.sharing} became {found.sharing}"
    return "" if expected.drawn == found.drawn else "the random number generator is left in another state"


def other_error(expected: Exception | None, found: Exception | None, *, message: bool) -> str:
    """Describe how two errors differ."""
    if type(expected) is type(found) and (expected is None or not message or words_of(expected) == words_of(found)):
        return ""
    if expected is not None and (isinstance(found, NotDifferentiable) or (found is not None and not message)):
        return ""
    return f"{expected!r:.300} became {found!r:.600}"


def words_of(error: Exception | None) -> str:
    """Return the message of an error, without the stack of C++ functions that some of PyTorch's errors contain."""
    return str(error).partition("Exception raised from ")[0]


def differs(one: Any, other: Any, *, exact: bool) -> str:
    """Describe how two leaves differ. Strides are compared if `exact` is set, which it is not for gradients."""
    if type(one) is not type(other):
        return f"{type(one)} became {type(other)}"
    if not isinstance(one, Tensor):
        return "" if repr(one) == repr(other) else f"{one!r} became {other!r}"
    facts, others = facts_of(one, exact), facts_of(other, exact)
    if facts != others:
        return f"{facts} became {others}"
    same = torch.allclose(one.detach(), other.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)
    return "" if same else f"{one} became {other}"


def is_rounding(one: Any, other: Any, place: int, epsilon: float, nudged: Callable[[int], Outcome] | None) -> bool:
    """Whether two gradients differ by no more than eager's gradients for neighbouring inputs.

    If a derivative is zero, such as that of the norm of `layer_norm`'s result, the whole gradient is rounding. A
    gradient that passes through 16-bit numbers depends on the order in which its summands are added: it may differ
    by the relative `epsilon` of their dtype, which is zero without such numbers.
    """
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or facts_of(one, False) != facts_of(other, False):
        return False
    if (one - other).abs().max() <= epsilon * one.abs().max():
        return True
    outcomes = [nudged(seed) for seed in range(4)] if nudged is not None else []
    if not outcomes or any(outcome.error is not None or outcome.gradients[place] is None for outcome in outcomes):
        return False
    spread = max((outcome.gradients[place] - one).abs().max() for outcome in outcomes)
    return bool((one - other).abs().max() <= 8 * spread)


def facts_of(tensor: Tensor, exact: bool) -> tuple[Any, ...]:
    """Return the type, shape, relevant strides, and autograd state of a tensor."""
    strides: tuple[int, ...] = ()
    if exact and tensor.numel():
        strides = tuple(step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    return tensor.dtype, tuple(tensor.shape), strides, tensor.requires_grad, is_leaf(tensor)


def is_leaf(tensor: Tensor) -> bool | str:
    """Whether a tensor is a leaf; the message of the error if PyTorch refuses to answer, as for some views."""
    try:
        return tensor.is_leaf
    except RuntimeError as error:
        return str(error)
