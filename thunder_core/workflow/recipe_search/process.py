"""Run a trial in a separate process, so that a crash, a hang or excessive memory use does not end the search."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from thunder_core.backend.cache.folders import cache_folder
from thunder_core.foundation.storage.folder import clean_up, new_locked_folder
from thunder_core.workflow.recipe_search import worker
from thunder_core.workflow.recipe_search.module_transfer import message_of, offer
from thunder_core.workflow.recipe_search.request_trial import RequestSubject
from thunder_core.workflow.recipe_search.stored_searches import FOLDER as SEARCHES
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts, TrialRefusal
from thunder_core.workflow.recipe_search.trial_task import TrialTask
from thunder_core.workflow.recipe_search.trial_task_format import write_task

MAX_QUOTED = 160  # characters of the last line of a process's output that a message quotes


def run_in_process(task: TrialTask, seconds: float) -> TrialFacts | TrialRefusal:
    """Run a task in a separate process within a number of seconds.

    Raises `WrongInputs` for a task that cannot be sent to another process. The process is killed, and its files are
    removed after any error.
    """
    with trial_folder() as folder:
        (folder / worker.PATHS).write_text(json.dumps(sys.path), encoding="utf-8")
        write_task(task, folder)
        with (folder / worker.OUTPUT).open("wb") as output, offered_module(task) as descriptors:
            command = (sys.executable, "-m", worker.__name__, str(folder), *map(str, descriptors))
            status = run_command(command, output.fileno(), seconds, descriptors)
        return result_in(folder, status, seconds)


@contextmanager
def offered_module(task: TrialTask) -> Iterator[tuple[int, ...]]:
    """Offer the module of a task to a child process; yield the file descriptor, or nothing for a request.

    Raises `WrongInputs` for a module that cannot be sent.
    """
    if isinstance(task.subject, RequestSubject):
        yield ()
        return
    with offer(message_of(task.subject)) as descriptor:
        yield (descriptor,)


@contextmanager
def trial_folder() -> Iterator[Path]:
    """Create a folder for the task and the result of a trial, after removing the folders of killed searches.

    The folder is in the cache folder or, if the cache folder is not writable, in the folder for temporary files.
    """
    trial_folder = cache_folder() / SEARCHES / "trial"
    try:
        trial_folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        clean_up(trial_folder)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="thunder-search-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    with new_locked_folder(trial_folder) as folder:
        yield folder


def run_command(command: Sequence[str], output: int, seconds: float, descriptors: Sequence[int] = ()) -> int | None:
    """Run a command that prints into a file descriptor; return its exit status, or None if its time has ended.

    The process also has the file `descriptors`.
    """
    # In a new session, Ctrl-C in the terminal does not reach the trial; the search then kills its process group.
    process = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        pass_fds=descriptors,
    )
    try:
        return process.wait(max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def result_in(folder: Path, status: int | None, seconds: float) -> TrialFacts | TrialRefusal:
    """Return the result that a process has written, or a refusal with the reason why there is no result."""
    if status is None:
        return TrialRefusal(
            reason=f"it did not finish within the remaining {seconds:.0f} s", is_temporary=True, timed_out=True
        )
    result = folder / worker.RESULT
    if result.is_file():
        content = json.loads(result.read_text(encoding="utf-8"))
        if "facts" in content:
            return TrialFacts.model_validate(content["facts"])
        return TrialRefusal.model_validate(content["refusal"])
    lines = (folder / worker.OUTPUT).read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    quoted = f": {last:.{MAX_QUOTED}}" if last else ""
    return TrialRefusal(reason=f"its process {describe_exit(status)}{quoted}", is_temporary=True)


def describe_exit(status: int) -> str:
    """Describe how a process ended, from its exit status."""
    if status >= 0:
        return f"ended with exit status {status}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"
