"""Tensor parallelism: each rank has a part of the weights of linear layers.

The style colwise divides the outputs of a layer (the rows of `weight`), and rowwise the inputs (the columns).

The names of styles are those of `torch.distributed.tensor.parallel` and of the plans of the transformers library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from thunder_core.backend.parallel.local_parts import (
    DATA_PARALLEL_GROUP,
    DIVIDED_OVER,
    LEAVES,
    PLACEMENTS_OF_PARTS,
    REFUSING_METHODS,
    distributed_parameter,
    own_parameters,
)
from thunder_core.backend.parallel.mesh_axes import group_name_in_programs
from thunder_core.backend.parallel.operators import FUNCTIONAL, OPERATORS
from thunder_core.backend.parallel.replicas import broadcast_values
from thunder_core.backend.parallel.shards import require_shardable
from thunder_core.foundation.errors import RecipeMismatch
from thunder_core.foundation.model_configs import config_or_none
from thunder_core.tracing.capture.torch_facts.modes import is_recording
from thunder_core.tracing.extension.subclass import subclass_of

COLWISE, ROWWISE, GRADIENTS_REDUCED = "colwise", "rowwise", "replicated_with_grad_allreduce"
STYLES = {
    **{style: style for style in (COLWISE, ROWWISE, GRADIENTS_REDUCED)},
    "ColwiseParallel": COLWISE,
    "RowwiseParallel": ROWWISE,
}
# Styles of transformers' plans for modules before and after the layers; the recipe does not divide these modules.
UNDIVIDED_STYLES = frozenset({"colwise_gather_output", "colwise_rep", "embedding_rowwise"})
HEAD_COUNTS, ATTENTION = ("num_attention_heads", "num_key_value_heads"), ".self_attn."
PLAN_FIX = 'pass a plan: parallelize_plan={"layers.*.up": "colwise", "layers.*.down": "rowwise"}'
CORRECT_PLAN_FIX = (
    'correct the plan, for example parallelize_plan={"layers.*.up": "colwise", "layers.*.down": "rowwise"}'
)

QUANTIZED_FIX = "use another recipe that quantizes, such as int8-weight-only"

Plan = Mapping[str, str]


def plan_of_model(model: Any, size: int) -> dict[str, str]:
    """Return the plan of a model of the transformers library for a number of ranks.

    Raises `RecipeMismatch` for a model without a plan, and for attention heads that the ranks cannot divide.
    """
    plan = getattr(model, "tp_plan", None) or getattr(config_or_none(model), "base_model_tp_plan", None)
    if not plan:
        raise RecipeMismatch(
            f"this {type(model).__name__} has no plan for tensor parallelism (`tp_plan`)", fix=PLAN_FIX
        )
    for name in HEAD_COUNTS:
        heads = getattr(model.config, name, None)
        if isinstance(heads, int) and heads % size and any(ATTENTION in module for module in plan):
            raise RecipeMismatch(
                f"the model has {heads} heads ({name}), which cannot be divided among {size} ranks",
                fix=f"use a number of ranks that divides {heads}, or pass a plan without the attention layers: "
                "parallelize_plan",
            )
    return {name: style for name, style in plan.items() if style not in UNDIVIDED_STYLES}


def modules_of(model: torch.nn.Module, plan: Plan) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """Yield the modules that a plan names, each with its path and style.

    A pattern has as many names between dots as a path, as in `parallelize_module`. Raises `RecipeMismatch` for an
    unknown style, for a pattern that matches no module, and for a module with two styles.
    """
    styles: dict[str, str] = {}
    for pattern, style in plan.items():
        if style not in STYLES:
            raise RecipeMismatch(
                f"the plan has the style {style!r} for {pattern!r}, which the recipe tensor-parallel does not support",
                fix=f"use one of {', '.join(STYLES)}",
            )
        matching = [path for path, _ in model.named_modules() if matches(pattern, path)]
        if not matching:
            raise RecipeMismatch(f"the plan names {pattern!r}, but no module has this name", fix=CORRECT_PLAN_FIX)
        for path in matching:
            if styles.setdefault(path, STYLES[style]) != STYLES[style]:
                raise RecipeMismatch(
                    f"the plan has two styles for {path}: {styles[path]} and {style}", fix=CORRECT_PLAN_FIX
                )
    yield from ((path, model.get_submodule(path), style) for path, style in styles.items())


def matches(pattern: str, path: str) -> bool:
    """Whether each name between the dots of a path matches the corresponding name of a pattern."""
    parts, patterns = path.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


@dataclass(frozen=True)
class TensorParallelism:
    """Tensor parallelism over a process group and its mesh."""

    group: Any
    mesh: DeviceMesh

    def parallelize(self, model: torch.nn.Module, plan: Plan) -> torch.nn.Module:
        """Parallelize, in place, the modules that a plan names; all ranks get the values of the first rank."""
        require_shardable(model)
        broadcast_values([*model.parameters(), *model.buffers()], self.group)
        for path, module, style in list(modules_of(model, plan)):
            if style == GRADIENTS_REDUCED:
                reduced = {name: self._reducing_property(name) for name in own_parameters(module)}
                module.__dict__[DATA_PARALLEL_GROUP] = group_name_in_programs(self.group)
                module.__class__ = subclass_of(type(module), reduced)
                continue
            self._require_divisible(path, module, style)
            if not isinstance(module, torch.nn.Linear):
                self._divide_quantized(path, module, style)
                continue
            require_untied(model, path, module)
            placements = PLACEMENTS[style]
            shards = {
                name: self._shard_of(parameter, placements[name]) for name, parameter in own_parameters(module).items()
            }
            module._parameters.update({name: shard for name, (shard, _) in shards.items()})
            module.__dict__[LEAVES] = {name: leaf for name, (_, leaf) in shards.items()}
            module.__dict__[PLACEMENTS_OF_PARTS] = {name: placements[name] for name in shards}
            members = {name: local_parameter(name) for name in shards}
            forward = FORWARDS[style](type(module), group_name_in_programs(self.group))
            module.__class__ = subclass_of(type(module), {**REFUSING_METHODS, **members, "forward": forward})
        model.__dict__[DIVIDED_OVER] = group_name_in_programs(self.group)
        return model

    def _require_divisible(self, path: str, module: torch.nn.Module, style: str) -> None:
        """Raise `RecipeMismatch` if a module is no linear layer, or if the ranks cannot divide its size."""
        # A class with `product` is a linear layer that can compute its product without the bias.
        is_plain = type(module).forward is torch.nn.Linear.forward or hasattr(type(module), "product")
        is_linear = isinstance(module, torch.nn.Linear) and is_plain
        if not (is_linear or getattr(type(module), "divisions", None)):
            fix = f"{QUANTIZED_FIX}, or {CORRECT_PLAN_FIX}" if hasattr(module, "divisions") else CORRECT_PLAN_FIX
            raise RecipeMismatch(
                f"the plan has {style} for {path}, which is of class {type(module).__name__}; only linear layers with "
                "the forward of `torch.nn.Linear` can be divided",
                fix=fix,
            )
        size = int(getattr(module, "out_features" if style == COLWISE else "in_features"))
        if size % self.group.size():
            raise RecipeMismatch(
                f"the {size} {'rows' if style == COLWISE else 'columns'} of {path}.weight cannot be divided among "
                f"{self.group.size()} ranks",
                fix=f"use a number of ranks that divides {size}, or leave the module out of the plan",
            )

    def _divide_quantized(self, path: str, layer: Any, style: str) -> None:
        """Replace the tensors of a quantized layer by the parts of this rank, which need no gradients."""
        dimension = 0 if style == COLWISE else 1
        size = (layer.rows, layer.columns)[dimension] // self.group.size()
        if style == ROWWISE:
            self._require_whole_groups(path, layer, size)
        start = self.group.rank() * size
        for name in type(layer).divisions:
            part = layer.part(name, dimension, start, start + size)
            if part is None or part is getattr(layer, name):
                continue
            part = part.detach().clone(memory_format=torch.contiguous_format)
            if name in layer._buffers:
                layer._buffers[name] = part
            else:
                layer._parameters[name] = torch.nn.Parameter(part, requires_grad=False)
        setattr(layer, "rows" if style == COLWISE else "columns", size)
        layer.in_features, layer.out_features = layer.columns, layer.rows
        forward = QUANTIZED_FORWARDS[style](type(layer), group_name_in_programs(self.group))
        layer.__class__ = subclass_of(type(layer), {"forward": forward})

    def _require_whole_groups(self, path: str, layer: Any, columns: int) -> None:
        """Raise `RecipeMismatch` if columns that are quantized together would be on different ranks."""
        if columns % layer.inseparable_columns:
            raise RecipeMismatch(
                f"the {layer.columns} columns of {path} are quantized in groups of {layer.inseparable_columns}, which "
                f"cannot be divided among {self.group.size()} ranks",
                fix=("use a smaller group_size, " if layer.in_groups else "")
                + f"use fewer ranks, or do not quantize this layer (skip={path!r})",
            )

    def _shard_of(self, parameter: torch.nn.Parameter, placement: Placement) -> tuple[torch.nn.Parameter, torch.Tensor]:
        """Return the part of this rank as a DTensor parameter, and as the tensor that programs read."""
        leaf = self._part_of(parameter.detach(), placement).clone(memory_format=torch.contiguous_format)
        return distributed_parameter(parameter, leaf, leaf.detach(), self.mesh, [placement]), leaf

    def _part_of(self, tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
        if not isinstance(placement, Shard):
            return tensor
        part: torch.Tensor = tensor.chunk(self.group.size(), placement.dim)[self.group.rank()]
        return part

    def _reducing_property(self, name: str) -> property:
        """Return a property that reads a parameter of which each rank has the whole.

        During tracing, the property reads the parameter by `copy_to_group`, whose backward sums the gradients of the
        ranks.
        """
        group_name = group_name_in_programs(self.group)

        def read(self: Any) -> torch.Tensor:
            parameter: torch.Tensor = self._parameters[name]
            result: torch.Tensor = OPERATORS.copy_to_group(parameter, group_name) if is_recording() else parameter
            return result

        return property(read)


def require_untied(model: torch.nn.Module, path: str, module: torch.nn.Module) -> None:
    """Raise `RecipeMismatch` if a module shares a parameter with another module, which needs the full parameter."""
    parameters = {id(parameter) for parameter in own_parameters(module).values()}
    other_owners = (name for name, owner in model.named_modules() if owner is not module and parameters & ids_of(owner))
    if (other_path := next(other_owners, None)) is not None:
        raise RecipeMismatch(
            f"{path} and {other_path} share a parameter, so the recipe cannot divide {path} alone among the ranks",
            fix="leave the module out of the plan, or do not tie the parameters",
        )


def ids_of(module: torch.nn.Module) -> set[int]:
    """Return the identities of the parameters that a module itself has."""
    return {id(parameter) for parameter in own_parameters(module).values()}


def local_parameter(name: str) -> property:
    """Return a property: during tracing the part of a parameter on this rank, otherwise the DTensor parameter."""

    def read(self: Any) -> torch.Tensor:
        result: torch.Tensor = getattr(self, LEAVES)[name] if is_recording() else self._parameters[name]
        return result

    return property(read)


def colwise_forward(kind: Any, group_name: str) -> Callable[..., torch.Tensor]:
    """Return the forward of a linear layer that computes some columns of the output on each rank."""

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in PyTorch
        result: torch.Tensor = kind.forward(self, OPERATORS.copy_to_group(input, group_name))
        return result

    return forward


def rowwise_forward(kind: Any, group_name: str) -> Callable[..., torch.Tensor]:
    """Return the forward of a linear layer that reads some columns of the input on each rank, and sums the results."""
    product = getattr(kind, "product", linear_product)

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in PyTorch
        partial = product(self, input)
        result: torch.Tensor = OPERATORS.reduce_from_group(partial, group_name)
        return result if self.bias is None else result + self.bias

    return forward


def linear_product(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the product of a `torch.nn.Linear` without its bias."""
    return torch.nn.functional.linear(x, layer.weight)


def rowwise_quantized_forward(kind: Any, group_name: str) -> Callable[..., torch.Tensor]:
    """Return the forward of a quantized layer that reads some columns of the input on each rank, and sums the results.

    Sums of floating-point numbers have the wider one of the dtypes of the partial results and of the input. Sums of
    integers are exact.
    """

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in PyTorch
        def reduce(tensor: torch.Tensor, reduction: str) -> torch.Tensor:
            reduced: torch.Tensor
            if reduction == "max":
                reduced = FUNCTIONAL.wait_tensor(FUNCTIONAL.all_reduce(tensor, "max", group_name))
            else:
                terms = (
                    tensor.to(torch.promote_types(tensor.dtype, input.dtype)) if tensor.is_floating_point() else tensor
                )
                reduced = OPERATORS.reduce_from_group(terms, group_name)
            return reduced

        result: torch.Tensor = self.product(input.reshape(-1, self.columns), reduce).to(input.dtype)
        result = result.view(*input.shape[:-1], self.rows)
        return result if self.bias is None else result + self.bias.to(input.dtype)

    return forward


PLACEMENTS: Mapping[str, Mapping[str, Placement]] = {
    COLWISE: {"weight": Shard(0), "bias": Shard(0)},
    ROWWISE: {"weight": Shard(1), "bias": Replicate()},
}
FORWARDS = {COLWISE: colwise_forward, ROWWISE: rowwise_forward}
QUANTIZED_FORWARDS = {COLWISE: colwise_forward, ROWWISE: rowwise_quantized_forward}
