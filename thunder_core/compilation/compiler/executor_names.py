"""The names by which pickled compilers refer to their executors."""

from __future__ import annotations

from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.foundation.errors import CannotReplay, EnvironmentLacks, UnknownName


def name_for_pickle(executor: Executor) -> str:
    """Return the name of an executor; raise `CannotReplay` if another executor is registered under the same name."""
    try:
        registered = find_executor(executor.name)
    except (UnknownName, EnvironmentLacks):
        return executor.name
    if registered is not executor:
        raise CannotReplay(
            f"a program of the executor {executor.name} cannot be pickled: another executor has the same name",
            fix="register the executor under a unique name with register_executor, or pickle the original module",
        )
    return executor.name
