"""The state that a call changes: buffers, attributes and inputs, which are compared like outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from thunder_core.backend.claiming.copies import shares_memory
from thunder_core.tracing.library.capturing_hooks import FLAG
from thunder_core.workflow.validation.leaves import Leaves, leaves_of
from thunder_core.workflow.validation.report import AFTER_CALL
from thunder_core.workflow.validation.wide_weights import constant_buffers

# The attributes of every module (hooks, and registries of parameters, buffers and children), and a transformers flag.
MODULE_INTERNALS = frozenset({*vars(torch.nn.Module()), FLAG})


def state_of(model: torch.nn.Module, inputs: Mapping[str, object]) -> Leaves:
    """Return everything that a call may change, by path: buffers and attributes of a model's modules, and the inputs.

    Tensors are the model's own, not copies. Parameters, tensors without data and the codes of quantized layers are
    omitted, because no call may change them.
    """
    constant = constant_buffers(model)
    state: dict[str, object] = {f"input {name}": value for name, value in inputs.items()}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        attributes = {name: value for name, value in vars(module).items() if name not in MODULE_INTERNALS}
        values = {**attributes, **module._buffers}
        state |= {f"{prefix}{name}": value for name, value in values.items() if id(value) not in constant}
    leaves = leaves_of(state)
    leaves.tensors = {
        name: _dense_values(tensor) for name, tensor in leaves.tensors.items() if not _has_no_data(tensor)
    }
    return leaves


def _has_no_data(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, torch.nn.Parameter)


def _dense_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached, dense tensor with the values of a tensor."""
    plain = tensor.detach()
    return plain if plain.layout == torch.strided else plain.to_dense()


def changed_paths(before: Leaves, after: Leaves) -> dict[str, None]:
    """Return the paths whose value differs from before or is missing, in the order of the model."""
    paths = {**before.structure, **after.structure, **before.tensors, **after.tensors}
    return dict.fromkeys(path for path in paths if _is_changed(before, after, path))


def _is_changed(before: Leaves, after: Leaves, path: str) -> bool:
    old, new = before.tensors.get(path), after.tensors.get(path)
    if old is None or new is None:
        return old is not new or before.structure.get(path) != after.structure.get(path)
    if (old.shape, old.dtype) != (new.shape, new.dtype):  # also for tensors without elements
        return True
    return bool(changed_elements(old, new).any())


def changed_elements(before: torch.Tensor | None, after: torch.Tensor) -> torch.Tensor:
    """Return a mask of the elements whose values have changed; all elements if there was no such tensor."""
    if before is None or (before.shape, before.dtype) != (after.shape, after.dtype):
        return torch.ones_like(after, dtype=torch.bool)
    old, new = (_comparable(tensor.to(after.device)) for tensor in (before, after))
    return (old != new) & ~((old != old) & (new != new))  # NaN differs from itself: NaN before and after is no change


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    narrow = tensor.is_floating_point() and tensor.dtype.itemsize == 1  # PyTorch does not compare 8-bit floating dtypes
    return tensor.float() if narrow else tensor


def state_at(paths: Iterable[str], state: Leaves) -> Leaves:
    """Return the values at these paths, with the names that reports use for changed state."""
    tensors, structure = state.tensors, state.structure
    return Leaves(
        tensors={f"{path}{AFTER_CALL}": tensors[path] for path in paths if path in tensors},
        structure={f"{path}{AFTER_CALL}": structure[path] for path in paths if path in structure},
    )


@dataclass(frozen=True)
class ObservedCall:
    """The compared values of one call, and the state after the call."""

    leaves: Leaves
    state: Leaves

    def with_state_at(self, paths: Iterable[str]) -> ObservedCall:
        """Return this observation with the state at these paths added to the compared values.

        The tensors are not copied, so nothing may write to them before they are compared.
        """
        state = state_at(paths, self.state)
        tensors, structure = self.leaves.tensors | state.tensors, self.leaves.structure | state.structure
        return ObservedCall(Leaves(tensors, structure, self.leaves.opaque), self.state)

    def copy_at(self, paths: Iterable[str], buffers: Iterable[torch.Tensor]) -> ObservedCall:
        """Return this observation with copies of the state at these paths only.

        Compared values that share memory with the buffers are copied too.
        """
        paths, buffers = list(paths), list(buffers)
        tensors = {path: self.state.tensors[path].clone() for path in paths if path in self.state.tensors}
        structure = {path: self.state.structure[path] for path in paths if path in self.state.structure}
        values = {
            path: value.clone() if any(shares_memory(value, buffer) for buffer in buffers) else value
            for path, value in self.leaves.tensors.items()
        }
        leaves = Leaves(values, self.leaves.structure, self.leaves.opaque)
        return ObservedCall(leaves, Leaves(tensors, structure, self.state.opaque))
