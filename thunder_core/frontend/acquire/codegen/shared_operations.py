"""Operations that several counts share: a prologue runs each once, unless a later write has changed its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder_core.tracing.ir.symbol import BoundSymbol


class WrittenOperations:
    """The operations that compute counts and that a prologue already runs."""

    def __init__(self) -> None:
        self._written: dict[int, set[int | None]] = {}  # the memory that each operation writes to, by its identity

    def add(self, bsyms: Sequence[BoundSymbol], memory: Mapping[str, int | None]) -> Sequence[BoundSymbol]:
        """Return the operations of a count that the prologue must still run, and note that the prologue runs them.

        `bsyms` are all operations of the count in order, and `memory` maps names of tensors to their storages.

        All operations of the count are returned, and so repeated, if the prologue already runs an operation that writes
        to memory of the count and that belongs after one of its missing operations.
        """
        missing: Sequence[BoundSymbol] = [bsym for bsym in bsyms if id(bsym) not in self._written]
        if self._has_later_write(bsyms, missing, set(memory.values())):
            self._written.clear()
            missing = bsyms
        for bsym in missing:
            self._written[id(bsym)] = {memory.get(name) for name in bsym.mutates}
        return missing

    def _has_later_write(
        self, bsyms: Sequence[BoundSymbol], missing: Sequence[BoundSymbol], memory: set[int | None]
    ) -> bool:
        """Whether the prologue already runs an operation that writes to memory of a count after a missing operation.

        The operations of a count include all writes to its memory before the count.
        """
        identities = list(map(id, bsyms))
        before = set(identities[: identities.index(id(missing[0]))] if missing else identities)
        return any(written & memory for identity, written in self._written.items() if identity not in before)
