"""Tensor parallelism: each rank computes a part of each linear layer, and the ranks sum their partial results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from thunder_core.backend.parallel.buckets import result_of, tensor_of
from thunder_core.backend.parallel.collectives import is_call, with_all_reduces, without_replicas
from thunder_core.backend.parallel.groups import mesh_of, required_group
from thunder_core.backend.parallel.shards import follow_requires_grad
from thunder_core.backend.parallel.tensor_parallel import TensorParallelism, plan_of_model
from thunder_core.foundation.errors import BadOption
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, renamed_proxies
from thunder_core.tracing.ir.trace import Trace

PAIR_SEPARATOR, VALUE_SEPARATOR = ",", "="


@dataclass(frozen=True)
class ParallelizeLinears(Transform):
    """Divide linear layers among the ranks, as `torch.distributed.tensor.parallel.parallelize_module` does.

    `process_group` is the name of a process group; empty means the default group. `parallelize_plan` lists modules and
    their styles, such as `layers.*.up=colwise,layers.*.down=rowwise`; empty means the plan of a transformers model.
    """

    process_group: str = ""
    parallelize_plan: str = ""

    before: ClassVar[tuple[str, ...]] = ("autocast", "cse", "dce")
    after: ClassVar[tuple[str, ...]] = ("quantize", "ddp")
    operations: ClassVar[tuple[str, ...]] = ("thunder_core.backend.parallel.operators",)
    is_parallel: ClassVar[bool] = True

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Divide the layers of the model among the ranks; raise `OutsideProcessGroup` without a process group."""
        group = required_group(self.process_group, "tensor-parallel")
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        plan = self.plan_for(model, group.size())
        return TensorParallelism(group, mesh_of([("tp", group)], device)).parallelize(model, plan)

    def plan_for(self, model: torch.nn.Module, size: int) -> dict[str, str]:
        """Return the plan of this transform for a model; raise `RecipeMismatch` for a model without a plan."""
        return parse_plan(self.parallelize_plan) if self.parallelize_plan else plan_of_model(model, size)

    def before_call(self, model: torch.nn.Module) -> Callable[[], None]:
        """Return a function that copies `requires_grad` from each parameter to its part before a call."""
        return follow_requires_grad(model)

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace with one `copy_to_group` for each input of layers, so its gradient is summed only once."""
        first: dict[tuple[Any, ...], Proxy] = {}
        names: dict[str, Proxy] = {}
        bsyms: list[BoundSymbol] = []
        for bsym in trace.bound_symbols:
            renamed = bsym.rename(names) if names else bsym
            if is_call(bsym, "copy_to_group"):
                result = result_of(renamed)
                earlier = first.setdefault((tensor_of(renamed).name, *renamed.args[1:]), result)
                if earlier is not result:
                    names[result.name] = earlier
                    continue
            bsyms.append(renamed)
        if not names:
            return trace
        return trace.having(bsyms, made_by="share inputs", output=renamed_proxies(trace.output, names))

    def before_claiming(self, trace: Trace) -> Trace:
        """Return the trace with the collectives of its layers."""
        return with_all_reduces(without_replicas(trace))


def parse_plan(text: str) -> dict[str, str]:
    """Parse a plan; raise `BadOption` for a string that is not a plan."""
    pairs = [pair.strip().partition(VALUE_SEPARATOR) for pair in text.split(PAIR_SEPARATOR) if pair.strip()]
    if not all(name and style for name, _, style in pairs):
        raise BadOption(
            f"the plan {text!r} is not a list of names and styles",
            fix="write it as layers.*.up=colwise,layers.*.down=rowwise",
        )
    return {name.strip(): style.strip() for name, _, style in pairs}
