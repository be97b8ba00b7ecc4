"""Convert failures in any stage, such as Ctrl-C, a full disk and lack of memory, into errors of Thunder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from thunder_core.foundation.errors import Interrupted, OutOfDisk, OutOfMemory, ThunderError
from thunder_core.foundation.storage.full_disk import fullness
from thunder_core.tracing.extension.authorship import authors_error
from thunder_core.workflow.models.memory.free_memory import is_out_of_memory


@contextmanager
def stage_failures(stage_name: Callable[[], str]) -> Iterator[None]:
    """Convert the failures of a block into errors of Thunder; `stage_name()` returns the name of the stage.

    An interrupt becomes `Interrupted`, a full disk `OutOfDisk`, and a lack of memory `OutOfMemory`. An error in the
    code of a recipe or a plug-in becomes the error that names its source line (`authors_error`).
    """
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        failure = failure_of(error, stage_name())
        if failure is None:
            raise
        raise failure from error


def failure_of(error: BaseException, stage_name: str) -> ThunderError | None:
    """Return the ThunderError to raise instead of an error; None if the error itself is to be raised."""
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(
            f"interrupted at: {stage_name}; nothing was written", fix="run the command again to start over"
        )
    if full := fullness(error):
        filename = getattr(error, "filename", None)
        what = f"{full.what}{f' ({filename})' if filename else ''}, at: {stage_name}; nothing was written"
        return OutOfDisk(what, fix=full.fix)
    if is_out_of_memory(error):
        return OutOfMemory(
            f"out of memory at: {stage_name}; nothing was written",
            fix="use a smaller --batch or --seq, a narrower --dtype, or a machine with more memory",
        )
    return None if isinstance(error, ThunderError) else authors_error(error)
