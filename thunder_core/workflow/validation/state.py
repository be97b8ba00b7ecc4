"""The state that a call leaves behind: buffers, attributes and inputs that it changed, as quantities to be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from thunder_core.tracing.library.capturing_hooks import FLAG
from thunder_core.workflow.validation.leaves import Leaves, leaves_of
from thunder_core.workflow.validation.report import AFTER_CALL
from thunder_core.workflow.validation.wide_weights import constant_buffers

# Hooks, whether transformers has installed its own, and the registries of parameters, buffers and children.
MODULE_INTERNALS = frozenset({*vars(torch.nn.Module()), FLAG})


def state_of(model: torch.nn.Module, inputs: Mapping[str, object]) -> Leaves:
    """Everything that a call may change, by path: buffers and attributes of a model's modules, and the inputs.

    Tensors are the model's own, not copies; those without data are left out, parameters, which are shared, and the
    codes of quantized layers, which no call changes.
    """
    constant = constant_buffers(model)
    held: dict[str, object] = {f"input {name}": value for name, value in inputs.items()}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        attributes = {name: value for name, value in vars(module).items() if name not in MODULE_INTERNALS}
        values = {**attributes, **module._buffers}
        held |= {f"{prefix}{name}": value for name, value in values.items() if id(value) not in constant}
    found = leaves_of(held)
    found.tensors = {name: _plain(tensor) for name, tensor in found.tensors.items() if not _has_no_data(tensor)}
    return found


def _has_no_data(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, torch.nn.Parameter)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor as a dense one that autograd does not follow."""
    plain = tensor.detach()
    return plain if plain.layout == torch.strided else plain.to_dense()


def changed_paths(before: Leaves, after: Leaves) -> dict[str, None]:
    """The paths at which something else is found than before, or is found no more, in the order of the model."""
    paths = {**before.structure, **after.structure, **before.tensors, **after.tensors}
    return dict.fromkeys(path for path in paths if _is_changed(before, after, path))


def _is_changed(before: Leaves, after: Leaves, path: str) -> bool:
    old, new = before.tensors.get(path), after.tensors.get(path)
    if old is None or new is None:
        return old is not new or before.structure.get(path) != after.structure.get(path)
    if (old.shape, old.dtype) != (new.shape, new.dtype):  # also where there is no element that could differ
        return True
    return bool(changed_elements(old, new).any())


def changed_elements(before: torch.Tensor | None, after: torch.Tensor) -> torch.Tensor:
    """The elements that hold other values than before, as a mask; all of them where there was no such tensor."""
    if before is None or (before.shape, before.dtype) != (after.shape, after.dtype):
        return torch.ones_like(after, dtype=torch.bool)
    old, new = (_comparable(tensor.to(after.device)) for tensor in (before, after))
    return (old != new) & ~((old != old) & (new != new))  # NaN is the one value that is not itself


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    narrow = tensor.is_floating_point() and tensor.dtype.itemsize == 1  # those of 8 bits are stored, not compared
    return tensor.float() if narrow else tensor


def state_at(paths: Iterable[str], state: Leaves) -> Leaves:
    """Copies of what is found at these paths, named as reports name what a call leaves behind."""
    tensors, structure = state.tensors, state.structure
    return Leaves(
        tensors={f"{path}{AFTER_CALL}": tensors[path].clone() for path in paths if path in tensors},
        structure={f"{path}{AFTER_CALL}": structure[path] for path in paths if path in structure},
    )


@dataclass(frozen=True)
class Observed:
    """The values that are compared of one call, and the state that it left behind."""

    leaves: Leaves
    state: Leaves

    def with_state_at(self, paths: Iterable[str]) -> Observed:
        """Observation of this call, with the state at these paths among the values that are compared."""
        left = state_at(paths, self.state)
        tensors, structure = self.leaves.tensors | left.tensors, self.leaves.structure | left.structure
        return Observed(Leaves(tensors, structure, self.leaves.opaque), self.state)
