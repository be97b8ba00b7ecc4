"""The `Work` objects that asynchronous collectives (`async_op=True`) return to a traced program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from thunder_core.foundation.errors import SourceLine

BASE: Any = dist.Work if dist.is_available() else object
WAIT_FIRST = "call wait() first, or move the line out of the compiled program"


class TracedWork(BASE):  # type: ignore[misc]
    """The `Work` of a collective that the trace has started. `finish()` records that the program waits for it.

    `refuse(action, fix)` raises the error for a method that cannot be traced.
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
        """Whether the program has not waited for the collective."""
        return self._finish is not None

    def wait(self, timeout: object = None) -> bool:  # noqa: ARG002
        """Record that the program waits here, unless the program has already waited."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def synchronize(self) -> None:
        """Record that the program waits here."""
        self.wait()

    def is_completed(self) -> bool:
        """Return True if the program has waited; otherwise raise the error of `refuse`."""
        if self.is_pending:
            self._refuse(f"asks whether `{self.name}` is completed, which differs from call to call", WAIT_FIRST)
        return True

    def is_success(self) -> bool:
        """Return True, because waiting raises an error if the collective fails."""
        return self.is_completed()


def _refused_method(method: str) -> Callable[..., Any]:
    """Return a method that raises the error of `refuse`."""

    def refuse(work: TracedWork, *_args: Any, **_kwargs: Any) -> Any:
        work._refuse(f"calls `{method}` of the work of `{work.name}`, which is not traced", "call wait() instead")

    return refuse


for _method in dir(BASE):
    if not _method.startswith("__") and _method not in vars(TracedWork) and not _method.startswith("_pybind11"):
        setattr(TracedWork, _method, _refused_method(_method))
