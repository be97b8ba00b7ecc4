"""The side effects that a function of the program has while its calls are recorded."""

from __future__ import annotations

from thunder_core.frontend.acquire.held_objects import HeldObjects
from thunder_core.frontend.acquire.outside.paths import leads_from_random_draw
from thunder_core.frontend.acquire.outside.recording import Recording


class SideEffects:
    """The side effects of a function, from the creation of this object on. Writes to tensors are not among them.

    `function` refers to all objects of the program that the function may change.
    """

    def __init__(self, run: Recording, function: object) -> None:
        self._run = run
        self._effects = self._logged_effects()
        self._draw_count = len(run.draws.paths)
        self._held_objects = HeldObjects(function, lambda value: run.outside.path_of(value) is not None)

    def change_objects(self) -> bool:
        """Whether the function has changed an object, also an object of the program, or has printed."""
        return self._logged_effects() != self._effects or self._held_objects.have_changed()

    def draw_numbers(self) -> bool:
        """Whether the function has drawn random numbers outside of PyTorch, which the prologue draws at each call."""
        return any(map(leads_from_random_draw, self._run.draws.paths[self._draw_count :]))

    def _logged_effects(self) -> tuple[object, ...]:
        """Return the logged effects, the number of all writes, including replaced writes, and the number of prints."""
        log = self._run.outside.effects
        return (*log.effects, log.write_count, len(self._run.printed))
