"""Ranges of sizes in a run: which sizes of the inputs they are about, and at which points they are tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from math import isqrt

from thunder_core.errors import BadOption, BadSymbolicArgument, SequenceTooLong
from thunder_core.models.sequence import longest_sequence
from thunder_core.options.symbolic_arguments import SymbolicArgument
from thunder_core.pipeline.purpose import Inputs
from thunder_core.pipeline.ranges import SizeRange
from thunder_core.pipeline.session import InputSize, Session
from thunder_core.plugins import meant
from thunder_core.recipe import Recipe

Ranges = Mapping[str, SizeRange]


def require_dimensions(recipe: Recipe, ranges: Ranges) -> None:
    """Raise `BadSymbolicArgument` for a name that is none of the recipe's dimensions, or that no option sets."""
    known = [name for name in recipe.all_dimensions() if name in InputSize._fields]
    for name in ranges:
        if name not in known:
            raise BadSymbolicArgument(
                f"--dynamic names {name!r}, which is no dimension of the recipe {recipe.name}",
                fix=f"{meant(name, known)}name one of: {', '.join(known)}",
            )


def require_positions(config: object, ranges: Ranges) -> None:
    """Raise `SequenceTooLong` for a range that goes beyond the positions that a model was built for."""
    longest = longest_sequence(config) if "seq" in ranges else None  # type: ignore[arg-type]
    if longest is not None and ranges["seq"][1] > longest:
        raise SequenceTooLong(
            f"--dynamic seq={ranges['seq'][0]}:{ranges['seq'][1]} goes beyond the {longest} tokens that the model was "
            "built for",
            fix=f"write --dynamic seq={min(ranges['seq'][0], longest - 1)}:{longest}",
        )


def size_within(ranges: Ranges, name: str, size: int, *, asked: bool) -> int:
    """The size at which is traced: one that was asked for, or the usual one, which is brought into its range.

    Raises `BadOption` for one that was asked for and lies outside.
    """
    lower, upper = ranges.get(name, (size, size))
    if asked and not lower <= size <= upper:
        raise BadOption(
            f"--{name} is {size}, outside of the range {name}={lower}:{upper}",
            fix=f"give --{name} a number from {lower} to {upper}, or leave it out",
        )
    return min(max(size, lower), upper)


def points_of(ranges: Ranges, traced: InputSize) -> list[InputSize]:
    """The sizes at which is validated and measured: the traced one, all ends of ranges, and one between them."""
    if not ranges:
        return [traced]
    corners = itertools.product(*(ends for ends in ranges.values()))
    found = [traced, *(traced._replace(**dict(zip(ranges, corner, strict=True))) for corner in corners)]
    middle = {name: _between(ends, getattr(traced, name)) for name, ends in ranges.items()}
    return list(dict.fromkeys([*found, traced._replace(**middle)]))


def _between(ends: SizeRange, traced: int) -> int:
    """A size between the ends, near their geometric mean, that is not the one that was traced."""
    lower, upper = ends
    middle = isqrt(lower * upper) | 1
    return next(
        (size for size in (middle, middle + 1, middle - 1, middle + 2) if lower < size < upper and size != traced),
        lower,
    )


def upper_end(ranges: Ranges, traced: InputSize) -> InputSize:
    """The largest input of the ranges."""
    return traced._replace(**{name: upper for name, (_, upper) in ranges.items()})


def arguments_of(session: Session, recipe: Recipe, ranges: Ranges, traced: InputSize) -> tuple[SymbolicArgument, ...]:
    """The sizes of the model's inputs that the ranges are about, each with the range that it has in the inputs.

    Raises `BadSymbolicArgument` for a dimension that no input of the model has, and for an input that varies with one
    and that the recipe does not name.
    """
    found: dict[str, SymbolicArgument] = {}
    for dimension, (lower, upper) in ranges.items():
        smallest, largest = (session.inputs(traced._replace(**{dimension: size})) for size in (lower, upper))
        varying = set(_varying(smallest, largest))
        named = {one: place for name in recipe.all_dimensions()[dimension] for one, place in _named(name, largest)}
        if not varying:
            raise BadSymbolicArgument(
                f"--dynamic names {dimension}, and no input of this {type(session.model).__name__} depends on it",
                fix=f"leave it out; its inputs are: {', '.join(_described(largest))}",
            )
        if unnamed := [place for place in varying if place not in named.values()]:
            told = ", ".join(f"{name}.size({place})" for name, place in sorted(unnamed))
            raise BadSymbolicArgument(
                f"{told} depends on {dimension}, and the recipe {recipe.name} does not name it",
                fix=f"name it in the recipe's `dimensions`, beside {', '.join(recipe.all_dimensions()[dimension])}",
            )
        for name, (argument, place) in named.items():
            if (argument, place) in varying:
                sizes = (smallest[argument].shape[place], largest[argument].shape[place])
                found[name] = SymbolicArgument(name, min(lower, *sizes), max(upper, *sizes), required=False)
    return (*found.values(), *(one for one in recipe.symbolic_arguments() if one.name not in found))


def _varying(smallest: Inputs, largest: Inputs) -> Iterator[tuple[str, int]]:
    """The inputs and dimensions in which two calls differ."""
    for name, tensor in largest.items():
        sizes = enumerate(zip(smallest[name].shape, tensor.shape, strict=True))
        yield from ((name, place) for place, (one, other) in sizes if one != other)


def _named(name: str, inputs: Inputs) -> Iterator[tuple[str, tuple[str, int]]]:
    """The name with the input and the dimension that it means, where there is such an input."""
    path = SymbolicArgument(name, None, None).path
    tensor = inputs.get(path.argument)
    if tensor is not None and path.dimension is not None and -tensor.dim() <= path.dimension < tensor.dim():
        yield name, (path.argument, path.dimension % tensor.dim())


def _described(inputs: Inputs) -> Iterator[str]:
    yield from (f"{name} {list(tensor.shape)}" for name, tensor in inputs.items())
