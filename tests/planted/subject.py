"""Subjects: small models of the families with compiled programs into which faults are planted."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

import thunder_core as thunder
from tests.families import WITH_CACHE, inputs_for, sample
from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler.last_call import last_program
from thunder_core.foundation.transformers_versions import cache_argument
from thunder_core.workflow.fault_localization.examination import examine
from thunder_core.workflow.validation.internal_check import Fault
from thunder_core.workflow.validation.leaves import Leaves, leaves_of
from thunder_core.workflow.validation.state import state_of

FAMILIES = ("llama", "gpt2", "bert", "vit", "t5")


class WithState(torch.nn.Module):
    """A model that keeps a sum, a mean and its latest logits, which the epilogue of its program writes."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))
        self.latest: torch.Tensor | None = None

    def forward(self, **kwargs: Any) -> Any:
        """Call the model, and keep parts of its result."""
        output = self.model(**kwargs)
        self.total = self.total + output.logits.detach().sum()
        self.mean = self.mean * 0.9 + output.logits.detach().mean()
        self.latest = output.logits.detach() * 2
        return output


@dataclass(frozen=True)
class Subject:
    """A model in a mode, the arguments of a call, and the program that serves the call."""

    family: str
    model: torch.nn.Module
    inputs: Mapping[str, Any]
    train: bool
    program: Program
    all_results: bool = False
    """Whether gradients are for all results; else for the loss alone, for which the backward was compiled."""

    def outcome(self, program: Program) -> Leaves:
        """All effects of a call: results, the model's state, and gradients for random cotangents of the results."""
        self.model.zero_grad()
        with state_put_back(self.model), torch.set_grad_enabled(self.train):
            torch.manual_seed(0)
            inputs = self.own_inputs()
            output = program.run(*program.prepare(self.model, (), inputs))
            found = leaves_of(output)
            if isinstance(output, dict):
                found.adopt(renamed(leaves_of(vars(output)), "attribute "))
            found.adopt(renamed(state_of(self.model, inputs), "state "))
            if self.train:
                found.tensors |= self.gradients(found.tensors)
            found.tensors = {path: tensor.detach().clone() for path, tensor in found.tensors.items()}
        return found

    def own_inputs(self) -> dict[str, Any]:
        """Copies of the arguments."""
        return copy.deepcopy(dict(self.inputs))

    def gradients(self, results: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The gradients of the parameters for random cotangents of the differentiated results."""
        followed = {path: result for path, result in results.items() if result.requires_grad}
        chosen = list(followed.values()) if self.all_results else [followed["loss"]]
        generator = torch.Generator().manual_seed(3)
        torch.autograd.backward(chosen, [torch.randn(one.shape, generator=generator) for one in chosen])
        return {f"grad {name}": p.grad for name, p in self.model.named_parameters() if p.grad is not None}

    def changes(self, program: Program) -> bool:
        """Whether another program's outcome differs in any bit from the right one, or the program raises an error."""
        try:
            return not is_identical(self.outcome(program), self.right)
        except Exception:
            return True

    @functools.cached_property
    def right(self) -> Leaves:
        """The outcome of the right program."""
        return self.outcome(self.program)

    def examined(self, program: Program, *, probe_guards: bool = False) -> tuple[Fault, ...]:
        """The faults that an examination finds in another program."""
        with torch.set_grad_enabled(self.train):
            return examine(program, self.model, (), self.inputs, probe_guards=probe_guards).faults


def renamed(leaves: Leaves, prefix: str) -> Leaves:
    """The same tensors under other paths."""
    return Leaves(
        *({f"{prefix}{path}": one for path, one in part.items()} for part in (leaves.tensors, leaves.structure))
    )


def is_identical(first: Leaves, second: Leaves) -> bool:
    """Whether two outcomes are equal in every bit."""
    if first.structure != second.structure or first.tensors.keys() != second.tensors.keys():
        return False
    return all(has_same_bits(value, second.tensors[path]) for path, value in first.tensors.items())


def has_same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have the same metadata and values; NaN equals NaN."""
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    return bool(torch.equal(first, second) or ((first == second) | ((first != first) & (second != second))).all())


@contextmanager
def state_put_back(model: torch.nn.Module) -> Iterator[None]:
    """Restore attributes, hooks and buffers of a model's modules, and the random state, after the block."""
    states = RandomStates.now({})
    dicts = [
        attributes
        for m in model.modules()
        for attributes in (vars(m), *vars(m).values())
        if isinstance(attributes, dict)
    ]
    saved = [(entries, dict(entries)) for entries in dicts]
    values = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        states.restore()
        for entries, before in saved:
            entries.clear()
            entries.update(before)
        for buffer, value in values:
            if not torch.equal(buffer, value):
                buffer.copy_(value)


@functools.cache
def subject(family: str, *, train: bool = False, executors: str = "", state: bool = False) -> Subject:
    """The subject of a family, compiled by the recipe `default`, or by a comma-separated list of executors.

    A subject with `state` writes buffers and an attribute. In inference it also writes a cache among its arguments, if
    the family accepts a cache.
    """
    loaded = sample(family)
    model, inputs = loaded.model.train(train), inputs_for(loaded, labels=train)
    if state and not train and family in WITH_CACHE:
        inputs[cache_argument(loaded.model)] = DynamicCache(config=loaded.model.config)
    model = WithState(model).train(train) if state else model
    compiled = thunder.jit(model, executors=executors.split(",")) if executors else thunder.compile(model, "default")
    with torch.set_grad_enabled(train), state_put_back(model):
        for _ in range(2):
            output = compiled(**copy.deepcopy(inputs))
            if train:
                output.loss.backward()
        program = last_program(compiled)
    assert isinstance(program, Program)
    return Subject(family, model, inputs, train, program)
