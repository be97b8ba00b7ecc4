"""A replacement for transformers' output classes, and the forward hooks that convert a model's outputs.

An artifact with plain outputs needs only PyTorch: its programs import this module instead of transformers.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch.utils import _pytree

HOOK = "thunder.outputs"  # the key of Thunder's forward hook; PyTorch's own keys are numbers


class ModelOutput(OrderedDict[str, Any]):
    """The output of a model with named fields, with the interface of transformers' `ModelOutput`.

    A field is an attribute (`output.logits`), a key (`output["logits"]`) and an item (`output[0]`). A field that is
    None is an attribute, but neither a key nor an item, and the length does not include it.
    """

    def __init__(self, fields: Mapping[str, Any] | None = None, **named: Any) -> None:
        """Create an output with these fields, in order."""
        super().__init__()
        for name, value in {**(fields or {}), **named}.items():
            object.__setattr__(self, name, None)
            setattr(self, name, value)

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values of the fields that are not None."""
        return tuple(self.values())

    def __getitem__(self, key: Any) -> Any:
        """Return a field by name, or by position among the fields that are not None; a slice returns a tuple."""
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def __setitem__(self, key: str, value: object) -> None:
        """Set a field, as a key and as an attribute."""
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute; the name of a field also sets its key, unless the value is None."""
        if name in vars(self) and value is not None:
            super().__setitem__(name, value)
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Return the class and all fields, including the fields that are None."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        raise TypeError("the fields of a ModelOutput cannot be removed: make a dict of it first")

    __delitem__ = pop = popitem = setdefault = update = clear = _refuse


def plain_output(output: object) -> Any:
    """Convert an output of transformers' classes, including nested outputs, into a `ModelOutput`."""
    if not is_library_output(output):
        return output
    return ModelOutput({name: plain_output(value) for name, value in vars(output).items()})


def is_library_output(output: object) -> bool:
    """Whether an output is an instance of transformers' output classes, which are both dicts and dataclasses."""
    return isinstance(output, OrderedDict) and dataclasses.is_dataclass(output)


def named_outputs(module: torch.nn.Module, args: tuple[Any, ...], output: object) -> Any:
    """Replace the output of a model by a `ModelOutput`: a forward hook."""
    return plain_output(output)


def tuple_outputs(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """Return the output of a model as a tuple. This function is a forward hook."""
    return output.to_tuple() if is_library_output(output) or isinstance(output, ModelOutput) else output


# The forward hooks by the values of `--outputs`.
HOOKS: Mapping[str, Callable[[torch.nn.Module, tuple[Any, ...], Any], Any]] = {
    "dict": named_outputs,
    "tuple": tuple_outputs,
}


def set_outputs(model: torch.nn.Module, name: str) -> None:
    """Make a model return outputs of a kind (`dict` or `tuple`); raise ValueError for an unknown kind."""
    if name not in HOOKS:
        raise ValueError(f"there are no outputs of the kind {name!r:.80}; the kinds are: {', '.join(HOOKS)}")
    hooks: dict[Any, Any] = model._forward_hooks
    hooks[HOOK] = HOOKS[name]


def has_outputs_set(model: torch.nn.Module) -> bool:
    """Return whether `set_outputs` was called for a model."""
    return HOOK in dict[Any, Any](model._forward_hooks)


def _flatten(output: ModelOutput) -> tuple[list[Any], tuple[tuple[str, ...], tuple[str, ...]]]:
    return list(output.values()), (tuple(vars(output)), tuple(output))


def _unflatten(values: Any, names: tuple[tuple[str, ...], tuple[str, ...]]) -> ModelOutput:
    fields, keys = names
    return ModelOutput({**dict.fromkeys(fields), **dict(zip(keys, values, strict=True))})


_pytree.register_pytree_node(
    ModelOutput, _flatten, _unflatten, serialized_type_name=f"{__name__}.{ModelOutput.__name__}"
)
