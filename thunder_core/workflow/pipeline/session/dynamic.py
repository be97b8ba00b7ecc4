"""Ranges of sizes in a run: the inputs' sizes in each range, and the sizes for validation and measurement."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

from transformers import PretrainedConfig

from thunder_core.foundation.errors import BadSymbolicArgument, SequenceTooLong
from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument
from thunder_core.foundation.similar_names import did_you_mean
from thunder_core.frontend.acquire.named import named_values
from thunder_core.passes.recipe import Recipe
from thunder_core.workflow.models.inputs.input_tensors import numbers_in, tensors_in
from thunder_core.workflow.models.inputs.inputs import Inputs
from thunder_core.workflow.models.inputs.sequence import longest_sequence
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.request.ranges import SizeRange
from thunder_core.workflow.report.ranges import KEYWORD

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline.session.session import Session

Ranges = Mapping[str, SizeRange]
POSITIONS = ("seq", "cache")  # the sizes that are limited by a model's positions


def require_dimensions(recipe: Recipe, ranges: Ranges) -> None:
    """Raise `BadSymbolicArgument` for a name that is no dimension of the recipe, or no size of inputs."""
    dimensions = [name for name in recipe.all_dimensions() if name in InputSize._fields]
    for name in ranges:
        if name not in dimensions:
            raise BadSymbolicArgument(
                f"--dynamic names {name!r}, which is not a dimension of the recipe {recipe.name}",
                fix=f"{did_you_mean(name, dimensions)}name one of: {', '.join(dimensions)}",
            )


def require_positions(config: PretrainedConfig, ranges: Ranges, size: InputSize) -> None:
    """Raise `SequenceTooLong` for ranges that exceed the model's number of positions.

    The tokens in a cache count together with the tokens of the sequence.
    """
    longest = longest_sequence(config)
    if longest is None or not ranges.keys() & POSITIONS:
        return
    ends = {name: ranges.get(name, (length, length)) for name in POSITIONS if (length := getattr(size, name))}
    total = sum(upper for _, upper in ends.values())
    if total > longest:
        name = next(name for name in POSITIONS if name in ranges)
        lower, upper = ranges[name]
        rest = longest - (total - upper)
        in_total = f", {total} tokens in total," if len(ends) > 1 else ""
        raise SequenceTooLong(
            f"--dynamic {name}={lower}:{upper}{in_total} exceeds the model's {longest} positions",
            fix=f"write --dynamic {name}={max(min(lower, rest - 1), 0)}:{rest}" if rest > 1 else "name narrower ranges",
        )


def points_of(ranges: Ranges, traced: InputSize) -> list[InputSize]:
    """Return the sizes for validation and measurement: the traced size, all ends of ranges, and a size between them."""
    if not ranges:
        return [traced]
    corners = itertools.product(*(ends for ends in ranges.values()))
    sizes = [traced, *(traced._replace(**dict(zip(ranges, corner, strict=True))) for corner in corners)]
    middle = {name: _size_between(ends, getattr(traced, name)) for name, ends in ranges.items()}
    return list(dict.fromkeys([*sizes, traced._replace(**middle)]))


def _size_between(ends: SizeRange, traced: int) -> int:
    """Return a size between the ends, near their geometric mean, that differs from the traced size."""
    lower, upper = ends
    middle = isqrt(lower * upper) | 1
    return next(
        (size for size in (middle, middle + 1, middle - 1, middle + 2) if lower < size < upper and size != traced),
        lower,
    )


def upper_end(ranges: Ranges, traced: InputSize) -> InputSize:
    """Return the largest input of the ranges."""
    return traced._replace(**{name: upper for name, (_, upper) in ranges.items()})


def arguments_of(session: Session, recipe: Recipe, ranges: Ranges, traced: InputSize) -> tuple[SymbolicArgument, ...]:
    """Return the sizes of the model's inputs that vary within the ranges, each with its own range.

    Raises `BadSymbolicArgument` for a dimension that no input of the model has, and for an input that depends on a
    dimension, but that the recipe does not name.
    """

    def inputs_of(size: InputSize) -> Inputs:
        inputs = session.inputs(size)
        return {**inputs, **{name: value for variant in session.variants(inputs) for name, value in variant.items()}}

    smallest, largest = (inputs_of(_end_of(ranges, traced, end)) for end in (0, 1))
    ends = RangeEnds(ranges, sizes_of(smallest), sizes_of(largest))
    arguments: dict[str, SymbolicArgument] = {}
    for dimension in ranges:
        lower_inputs = inputs_of(_end_of({dimension: ranges[dimension]}, traced, 0))
        upper_inputs = inputs_of(_end_of({dimension: ranges[dimension]}, traced, 1))
        varying = _varying_sizes(sizes_of(lower_inputs), sizes_of(upper_inputs))
        named = named_paths(session, recipe.all_dimensions()[dimension], upper_inputs)
        _require_named_paths(session, recipe, dimension, varying, named, upper_inputs)
        for name, size_paths in named.items():
            if any(path in varying for path in size_paths):
                arguments[name] = ends.argument(name, dimension, size_paths)
    return (
        *arguments.values(),
        *(argument for argument in recipe.symbolic_arguments() if argument.name not in arguments),
    )


@dataclass(frozen=True)
class RangeEnds:
    """The sizes of inputs at both ends of ranges, by their paths in the inputs."""

    ranges: Ranges
    smallest: Mapping[str, int]
    largest: Mapping[str, int]

    def argument(self, name: str, dimension: str, size_paths: Iterable[str]) -> SymbolicArgument:
        """Return the sizes with a name, and the range (from 1 or more) that covers their values at both ends."""
        lower, upper = self.ranges[dimension]
        sizes = [size for path in size_paths for size in (self.smallest[path], self.largest[path])]
        return SymbolicArgument(name, max(1, min(lower, *sizes)), max(upper, *sizes), required=False)


def _end_of(ranges: Ranges, traced: InputSize, end: int) -> InputSize:
    """Return the size at the lower ends of all ranges, or at the upper ends; a cache has at least one token.

    An empty cache has no tensors, so its size would not vary.
    """
    return traced._replace(**{name: max(1, bounds[end]) for name, bounds in ranges.items()})


def _require_named_paths(
    session: Session,
    recipe: Recipe,
    dimension: str,
    varying: Iterable[str],
    named: Mapping[str, Sequence[str]],
    inputs: Inputs,
) -> None:
    """Raise `BadSymbolicArgument` if no input's size depends on a dimension, or the recipe does not name the size."""
    if not varying:
        raise BadSymbolicArgument(
            f"--dynamic names {dimension}, but no input of this {type(session.model).__name__} depends on it",
            fix=f"leave out {dimension}; the inputs are: {', '.join(_describe(inputs))}",
        )
    named_paths = {path for paths in named.values() for path in paths}
    if unnamed := sorted(path for path in varying if path not in named_paths):
        raise BadSymbolicArgument(
            f"{', '.join(unnamed)} depends on {dimension}, but the recipe {recipe.name} does not name it",
            fix=f"add it to the recipe's `dimensions`, next to {', '.join(recipe.all_dimensions()[dimension])}",
        )


def sizes_of(inputs: Inputs) -> dict[str, int]:
    """Return the sizes of all tensors of inputs, and the numbers in caches, by path: `input_ids.size(1)`."""
    tensors = [*tensors_in(inputs)]
    sizes = {f"{name}.size({index})": size for name, tensor in tensors for index, size in enumerate(tensor.shape)}
    return {**sizes, **dict(numbers_in(inputs))}


def _varying_sizes(smallest: Mapping[str, int], largest: Mapping[str, int]) -> set[str]:
    """Return the paths of the sizes in which two calls differ."""
    return {path for path, size in largest.items() if smallest[path] != size}


def named_paths(session: Session, names: Iterable[str], inputs: Inputs) -> dict[str, list[str]]:
    """Return the names that lead to sizes of the inputs, each with the paths of these sizes."""
    arguments = [SymbolicArgument(name, None, None, required=False) for name in names]
    paths: dict[str, list[str]] = {}
    for value in named_values(arguments, session.model, (), inputs):
        paths.setdefault(value.argument.name, []).append(KEYWORD.sub(r"\1", value.path))
    return paths


def _describe(inputs: Inputs) -> Iterator[str]:
    yield from (f"{name} {list(tensor.shape)}" for name, tensor in tensors_in(inputs))
