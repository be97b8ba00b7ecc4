"""The process of one trial: `python -m thunder_core.workflow.recipe_search.worker FOLDER [DESCRIPTOR]`.

The folder contains the task. If its model is a `torch.nn.Module` in memory, the process receives the module from the
file descriptor. The process writes the result into the folder atomically, and on Linux ends if its parent ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path

import torch

from thunder_core.foundation.errors import ThunderError
from thunder_core.foundation.storage.file import write_atomically
from thunder_core.workflow.recipe_search.module_transfer import receive
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts, TrialRefusal
from thunder_core.workflow.recipe_search.trial_task_format import read_task

RESULT, PATHS, OUTPUT = "result.json", "paths.json", "output.txt"
END_WITH_PARENT = 1  # the option PR_SET_PDEATHSIG of prctl(2)
# Exit statuses of errors that a second trial raises again: usage, validation, and unsupported programs.
PERMANENT_STATUSES = frozenset({2, 4, 8})


def main(folder: Path, *descriptors: int) -> None:
    """Run the task in a folder, and write the result into the folder."""
    end_with_parent()
    sys.path[:] = json.loads((folder / PATHS).read_text(encoding="utf-8"))
    result = run_task(folder, *descriptors)
    kind = "facts" if isinstance(result, TrialFacts) else "refusal"
    write_atomically(folder / RESULT, f'{{"{kind}": {result.model_dump_json()}}}')


def end_with_parent() -> None:
    """Request that the system kills this process when its parent process ends for any reason."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(END_WITH_PARENT, signal.SIGKILL)
    if os.getppid() == 1:  # the parent has ended already
        sys.exit(1)


def run_task(folder: Path, *descriptors: int) -> TrialFacts | TrialRefusal:
    """Run the task in a folder; return the facts, or the reason why the candidate is refused."""
    try:
        return read_task(folder, partial(receive, *descriptors)).run()
    except ThunderError as error:
        is_permanent = error.status in PERMANENT_STATUSES
        reason = f"{error.code} {error.what}"
        return TrialRefusal(
            reason=reason, is_temporary=not is_permanent, code=error.code, fix=error.fix, status=error.status
        )
    except Exception as error:
        traceback.print_exc()
        return TrialRefusal(
            reason=f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.200}",
            is_temporary=True,
            is_raised=not isinstance(error, (MemoryError, torch.OutOfMemoryError)),
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
