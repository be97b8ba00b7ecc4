"""A trial in a process of its own: one that dies, hangs or takes too much memory costs only itself."""

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

from thunder_core.backend.cache.place import cache_folder
from thunder_core.foundation.storage.folder import clean_up, locked_folder
from thunder_core.workflow.recipe_search import worker
from thunder_core.workflow.recipe_search.kept import FOLDER as SEARCHES
from thunder_core.workflow.recipe_search.order import Order
from thunder_core.workflow.recipe_search.order_format import write_order
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts, TrialRefusal

LAST = 160  # characters of the last line that a process printed


def run_in_process(order: Order, seconds: float) -> TrialFacts | TrialRefusal:
    """Carry out an order in a process of its own, which may take so many seconds.

    Raises `WrongInputs` for an order that cannot be sent to another process. Nothing is left of the process and its
    files, whatever is raised.
    """
    with trial_folder() as folder:
        (folder / worker.PATHS).write_text(json.dumps(sys.path), encoding="utf-8")
        write_order(order, folder)
        with (folder / worker.OUTPUT).open("wb") as output:
            status = run_command((sys.executable, "-m", worker.__name__, str(folder)), output.fileno(), seconds)
        return result_in(folder, status, seconds)


@contextmanager
def trial_folder() -> Iterator[Path]:
    """A folder for the order and the result of a trial; those that killed searches left are removed first.

    It lies beside the kept results or, where these cannot be written, where temporary files do.
    """
    place = cache_folder() / SEARCHES / "trial"
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        clean_up(place)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="thunder-search-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    with locked_folder(place) as folder:
        yield folder


def run_command(command: Sequence[str], output: int, seconds: float) -> int | None:
    """The exit status of a command, which prints into the file of a descriptor; None where its time has ended."""
    # A session of its own: Ctrl-C in the terminal is for the search, which then ends the process with all it began.
    process = subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
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
    """The result that a process has written, or why there is none."""
    if status is None:
        return TrialRefusal(
            reason=f"it was not done within the {seconds:.0f} s that were left", passing=True, timed_out=True
        )
    result = folder / worker.RESULT
    if result.is_file():
        found = json.loads(result.read_text(encoding="utf-8"))
        if "facts" in found:
            return TrialFacts.model_validate(found["facts"])
        return TrialRefusal.model_validate(found["refusal"])
    lines = (folder / worker.OUTPUT).read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    told = f": {last:.{LAST}}" if last else ""
    return TrialRefusal(reason=f"its process {how_it_ended(status)}{told}", passing=True)


def how_it_ended(status: int) -> str:
    """The end of a process in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"
