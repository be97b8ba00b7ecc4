"""The largest accepted difference between an optimized output and the reference, as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from thunder_core.foundation.errors import BadOption

MAX_VALUES = {"top1": 1.0}  # the largest value that a bound may have; the other bounds have no largest value


@dataclass(frozen=True)
class Tolerance:
    """The largest accepted difference between an optimized output and the reference.

    The reference is the output of the model in higher precision.

    `times_eager` bounds the error: it may be this multiple of eager PyTorch's own error, plus `floor` times the largest
    magnitude of the reference. `kl` is the mean Kullback-Leibler divergence of the logits over positions, in nats.
    `top1` is the share of positions with the same most probable token. `kl` and `top1` are for language models.
    """

    times_eager: float = 2.0
    floor: float = 1e-6
    kl: float = 1e-3
    top1: float = 0.99

    def or_looser(self, other: Tolerance) -> Tolerance:
        """Return a tolerance that accepts every output that either of the two tolerances accepts."""
        return Tolerance(
            times_eager=max(self.times_eager, other.times_eager),
            floor=max(self.floor, other.floor),
            kl=max(self.kl, other.kl),
            top1=min(self.top1, other.top1),
        )

    def or_stricter(self, other: Tolerance) -> Tolerance:
        """Return a tolerance that accepts only the outputs that both tolerances accept."""
        return Tolerance(
            times_eager=min(self.times_eager, other.times_eager),
            floor=min(self.floor, other.floor),
            kl=min(self.kl, other.kl),
            top1=max(self.top1, other.top1),
        )

    @property
    def in_words(self) -> str:
        """The bounds as text, as the report of a validation shows them."""
        return f"times_eager={self.times_eager:g} floor={self.floor:g} kl={self.kl:g} top1={self.top1:g}"


def requested_tolerance(option: str, texts: Iterable[str], base: Tolerance) -> Tolerance:
    """Return `base` with the bounds of texts such as `times_eager=4`; raise `BadOption` if a text is not a bound.

    A number without a name is `times_eager`.
    """
    names = [field.name for field in fields(Tolerance)]
    for text in texts:
        name, equals, value = text.rpartition("=")
        number = finite_number(value)
        most = MAX_VALUES.get(name.strip(), math.inf)
        if (equals and name.strip() not in names) or number is None or not 0 <= number <= most:
            bounds = "".join(f"; {name} is at most {value:g}" for name, value in MAX_VALUES.items())
            raise BadOption(
                f"{option} {text!r:.80} is not a tolerance",
                fix=f"give a number, or one of {', '.join(names)} with its value{bounds}",
            )
        base = replace(base, **{name.strip() or names[0]: number})
    return base


def finite_number(text: str) -> float | None:
    """Return the finite_number number that a text represents, or None for any other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
