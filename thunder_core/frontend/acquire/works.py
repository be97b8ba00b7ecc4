"""Works: what a traced program gets from a collective that it did not wait for (`async_op=True`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from thunder_core.foundation.errors import SourceLine

BASE: Any = dist.Work if dist.is_available() else object
WAIT_FIRST = "call wait() before, or keep the line out of the compiled program"


class TracedWork(BASE):  # type: ignore[misc]
    """A collective that has begun in the trace; `finish` records that the program waits for it.

    What cannot be known before the program runs is refused by `refuse(what, fix)`.
    """

    def __init__(
        self, name: str, where: SourceLine | None, finish: Callable[[], Any], refuse: Callable[[str, str], Any]
    ) -> None:
        super().__init__()
        self.name, self.where = name, where
        self._finish: Callable[[], Any] | None = finish
        self._refuse = refuse

    @property
    def is_pending(self) -> bool:
        """Whether the program has not waited for it."""
        return self._finish is not None

    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002
        """Record that the program waits here, unless it has before."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def synchronize(self) -> None:
        """Record that the program waits here."""
        self.wait()

    def is_completed(self) -> bool:
        """Return that it is completed, which is known once the program has waited for it."""
        if self.is_pending:
            self._refuse(f"asks whether `{self.name}` is completed, which differs from call to call", WAIT_FIRST)
        return True

    def is_success(self) -> bool:
        """Return that it has succeeded: otherwise waiting for it would have raised an error."""
        return self.is_completed()


def _refusing(method: str) -> Callable[..., Any]:
    def refused(work: TracedWork, *_args: Any, **_kwargs: Any) -> Any:
        work._refuse(f"calls `{method}` of the work of `{work.name}`, which is not traced", "call wait() instead")

    return refused


for _method in dir(BASE):
    if not _method.startswith("__") and _method not in vars(TracedWork) and not _method.startswith("_pybind11"):
        setattr(TracedWork, _method, _refusing(_method))
