"""Observe, in eager PyTorch, the sizes that differ between the calls of a model by `generate`; they become symbolic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.foundation.errors import CannotGenerate
from thunder_core.foundation.errors.tree import message_line
from thunder_core.foundation.options.generation_lengths import GenerationLengths, Prompts
from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument
from thunder_core.passes.recipe import Recipe, Transform
from thunder_core.workflow.models.inputs.input_names import IDS
from thunder_core.workflow.models.inputs.prompts import random_prompts
from thunder_core.workflow.pipeline.session.dynamic import named_paths, sizes_of
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.validation.generation import generate

DIMENSIONS = ("batch", "seq", "cache")  # a size that belongs to two of these counts for the later dimension
# The errors that models raise if they cannot generate from text.
ERRORS = (TypeError, ValueError, AttributeError, NotImplementedError, IndexError, KeyError)
STEPS = 3  # a call with the prompt, and two more calls, whose cache lengths differ


@dataclass
class ObservedSizes:
    """The sizes of a model's inputs in the observed calls.

    `ranges` has the smallest and the largest size of each path. `dimensions` has, for each dimension of `DIMENSIONS`,
    the recipe's names of sizes, with the paths that each name refers to.
    """

    session: Session
    recipe: Recipe
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    dimensions: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    _seen: set[frozenset[str]] = field(default_factory=set)

    def note(self, inputs: dict[str, Any]) -> None:
        """Record the sizes of one call."""
        sizes = sizes_of(inputs)
        for path, size in sizes.items():
            least, greatest = self.ranges.get(path, (size, size))
            self.ranges[path] = min(least, size), max(greatest, size)
        if (paths := frozenset(sizes)) not in self._seen:
            self._seen.add(paths)
            self._note_names(inputs)

    def _note_names(self, inputs: dict[str, Any]) -> None:
        for dimension in DIMENSIONS:
            names = self.recipe.all_dimensions().get(dimension, ())
            for name, paths in named_paths(self.session, names, inputs).items():
                self.dimensions.setdefault(dimension, {}).setdefault(name, set()).update(paths)

    def arguments(self, lengths: GenerationLengths) -> tuple[SymbolicArgument, ...]:
        """Return the sizes that differ between calls, each with the range of its values for all these lengths."""
        arguments: dict[str, SymbolicArgument] = {}
        for dimension in DIMENSIONS:
            for name, paths in self.dimensions.get(dimension, {}).items():
                upper = self._largest_size(dimension, paths, lengths)
                if upper > 1 and any(self._differs(path) for path in paths):
                    arguments[name] = SymbolicArgument(name, 1, upper, required=False)
        return tuple(arguments.values())

    def _largest_size(self, dimension: str, paths: Iterable[str], lengths: GenerationLengths) -> int:
        """Return the largest size for a name of a dimension; the size of a cache grows by one with each step."""
        if dimension == "batch":
            return lengths.batch
        if dimension == "seq":
            return self._longest_call(lengths)
        return max(self.ranges[path][1] for path in paths) + max(0, lengths.new_tokens - STEPS)

    def _differs(self, path: str) -> bool:
        least, greatest = self.ranges[path]
        return least != greatest

    def _longest_call(self, lengths: GenerationLengths) -> int:
        """Return the largest number of tokens in one call: the longest prompt or, without a cache, all tokens."""
        paths = [path for paths_of_name in self.dimensions.get("seq", {}).values() for path in paths_of_name]
        ids = max((self.ranges[path][1] for path in paths if IDS in path), default=1)
        return lengths.prompt_length if ids <= lengths.prompt_length else lengths.total


@dataclass(frozen=True, eq=False)
class EagerGenerator:
    """A model in eager PyTorch. A transform of the recipe may replace its method `generate`."""

    model: Any
    transforms: Sequence[Transform]

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the last transform's `generate`, or of the model's own method."""
        methods = [transform.methods(self.model).get("generate") for transform in self.transforms]
        method = next(filter(None, reversed(methods)), type(self.model).generate)
        return method(self.model, *args, **kwargs)


def observe_sizes(session: Session, recipe: Recipe, lengths: GenerationLengths, eager: EagerGenerator) -> ObservedSizes:
    """Generate in eager PyTorch for the smallest and the largest prompts, and return the sizes of the model's calls.

    Raises `CannotGenerate` if `generate` fails.
    """
    sizes = ObservedSizes(session, recipe)
    is_on_meta = session.device.type == "meta"
    errors, on_device = ((*ERRORS, RuntimeError), " on the meta device") if is_on_meta else (ERRORS, "")
    with observe_calls(session.model, sizes):
        for prompts in lengths.boundary_prompts():
            try:
                generate(eager, inputs_of(session, prompts, session.seed), min(STEPS, lengths.new_tokens))
            except errors as error:
                kind = type(session.model).__name__
                raise CannotGenerate(
                    f"`generate` of {kind} fails in eager PyTorch{on_device} with prompts of {prompts}: "
                    f"{message_line(error):.300}",
                    fix="use a model that generates from text with the installed transformers",
                ) from error
    return sizes


@contextmanager
def observe_calls(model: torch.nn.Module, sizes: ObservedSizes) -> Iterator[None]:
    """While the block runs, record the sizes of each call of the model."""

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sizes.note(kwargs)

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def inputs_of(session: Session, prompts: Prompts, seed: int) -> dict[str, torch.Tensor]:
    """Return random prompts for a seed."""
    return random_prompts(session.loaded, **prompts._asdict(), seed=seed)
