"""Tensor parallelism: the ranks share linear layers, and add up what each of them computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from thunder_core.backend.parallel.buckets import result_of, tensor_of
from thunder_core.backend.parallel.collectives import is_call, with_all_reduces, without_replicas
from thunder_core.backend.parallel.groups import mesh_of, required_group
from thunder_core.backend.parallel.shards import follow_requires_grad
from thunder_core.backend.parallel.tensor_parallel import TensorParallelism, models_plan
from thunder_core.foundation.errors import BadOption
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, renamed_proxies
from thunder_core.tracing.ir.trace import Trace

PAIRS, VALUE = ",", "="


@dataclass(frozen=True)
class ParallelizeLinears(Transform):
    """Share linear layers among the ranks, as `torch.distributed.tensor.parallel.parallelize_module` does.

    `process_group` is the name of a process group, empty for the default one. `parallelize_plan` has the styles of
    modules: `layers.*.up=colwise,layers.*.down=rowwise`; it is empty for the plan of a model of transformers.
    """

    process_group: str = ""
    parallelize_plan: str = ""

    before: ClassVar[tuple[str, ...]] = ("autocast", "cse", "dce")
    after: ClassVar[tuple[str, ...]] = ("quantize",)
    excludes: ClassVar[tuple[str, ...]] = ("ddp", "fsdp")
    operations: ClassVar[tuple[str, ...]] = ("thunder_core.backend.parallel.operators",)

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model with parts of its layers; raises `OutsideProcessGroup` where there is no group."""
        group = required_group(self.process_group, "tensor-parallel")
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        plan = plan_of(self.parallelize_plan) if self.parallelize_plan else models_plan(model)
        return TensorParallelism(group, mesh_of(group, None, device)).parallelize(model, plan)

    def before_call(self, model: torch.nn.Module) -> Callable[[], None]:
        """The function that has autograd treat the part of each parameter by the parameter's `requires_grad`."""
        return follow_requires_grad(model)

    def __call__(self, trace: Trace) -> Trace:
        """The trace in which layers with the same input share it, so that its gradient is added up once."""
        first: dict[tuple[Any, ...], Proxy] = {}
        names: dict[str, Proxy] = {}
        kept: list[BoundSymbol] = []
        for bsym in trace.bound_symbols:
            renamed = bsym.renamed(names) if names else bsym
            if is_call(bsym, "copy_to_group"):
                result = result_of(renamed)
                earlier = first.setdefault((tensor_of(renamed).name, *renamed.args[1:]), result)
                if earlier is not result:
                    names[result.name] = earlier
                    continue
            kept.append(renamed)
        if not names:
            return trace
        return trace.having(kept, made_by="share inputs", output=renamed_proxies(trace.output, names))

    def before_claiming(self, trace: Trace) -> Trace:
        """The trace with the collectives of its layers."""
        return with_all_reduces(without_replicas(trace))


def plan_of(text: str) -> dict[str, str]:
    """Return the plan that a text describes; raise `BadOption` for a text that is not a plan."""
    pairs = [pair.strip().partition(VALUE) for pair in text.split(PAIRS) if pair.strip()]
    if not all(name and style for name, _, style in pairs):
        raise BadOption(
            f"the plan {text!r} is not a list of names and styles",
            fix="write it as layers.*.up=colwise,layers.*.down=rowwise",
        )
    return {name.strip(): style.strip() for name, _, style in pairs}
