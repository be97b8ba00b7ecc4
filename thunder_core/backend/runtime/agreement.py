"""Before a program's first run, the ranks of each process group compare the collectives of their programs in the group.

Ranks with different collectives would wait for each other forever, or compute with wrong numbers. Each rank writes the
collectives of a program to the store of the group, with the position of the run: the number of the group's collectives
that this rank has called before. Runs at the same position must have the same collectives. A rank that finds a
difference raises an error, and writes the error to the store for the other ranks.

A rank writes a program only before its first run. If another rank runs such a program, this rank asks for the
program, and a thread of the other rank answers. A rank that hears nothing within `WAIT_SECONDS` stops comparing, and
runs its collectives, which wait for the other rank. An answer that the other rank is compiling extends the wait. A late
rank still compares before its run, and may be the only rank that raises.

The collectives are compared after compiling, not after tracing, because different traces on two ranks are not
necessarily an error. A rank may drop a trace and trace again, and may run another program before the program that it
compiles.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from itertools import islice, zip_longest
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

import torch.distributed as dist

from thunder_core.backend.parallel.creations import number_of
from thunder_core.backend.parallel.deadlocks import FIX as STEPS_FIX
from thunder_core.backend.parallel.deadlocks import DeadlockWatch, ended_rank
from thunder_core.backend.parallel.ledger import Ledger, RecordedRun
from thunder_core.backend.parallel.positions import position_of
from thunder_core.backend.parallel.responder import Responder
from thunder_core.backend.parallel.waits import RunningProgram
from thunder_core.foundation.errors import CollectivesDiffer, SourceLine
from thunder_core.tracing.analysis.collectives import Collective, collectives_of, first_difference, groups_of
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.collectives import registered_group

WAIT_SECONDS = 10.0  # seconds that a rank waits for the programs of the other ranks
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05  # seconds between two reads of the store
QUESTION_PAUSE = 0.5  # seconds between two questions
COMPARE_VARIABLE = "THUNDER_COMPARE_COLLECTIVES"  # the environment variable; "0" switches the comparison off
ABSTRACT_STORE_MESSAGE = "pure virtual"  # a part of the error message of a store whose class implements no methods
FIX = (
    "let all ranks call the same collectives in the same order, with tensors of the same sizes and dtypes; "
    f"{COMPARE_VARIABLE}=0 runs the programs without this comparison"
)
_ledgers: WeakKeyDictionary[Any, Ledger | None] = WeakKeyDictionary()  # None for a group without a store


def groups_with_ledgers() -> list[tuple[Any, Ledger]]:
    """Return the process groups that have a ledger, each with its ledger."""
    return [(group, ledger) for group, ledger in list(_ledgers.items()) if ledger is not None]


def answer_all() -> None:
    """Answer the questions of other ranks in all groups, and search for deadlocks."""
    for group, ledger in groups_with_ledgers():
        with suppress(RuntimeError):  # if the store of this group has gone, the other groups are still answered
            ledger.answer(group, _watch.waits_text)
    _watch.look(groups_with_ledgers())


def announce_end() -> None:
    """Tell the other ranks of all groups that this process ends."""
    for group, ledger in groups_with_ledgers():
        with suppress(RuntimeError):
            ledger.end(group)


_watch = DeadlockWatch()
_responder = Responder(answer_all, announce_end)


def ledger_of(group: Any) -> Ledger | None:
    """Return the ledger of a group, and start the answering thread when the ledger is created.

    None for a group of one rank, and for a group whose store cannot be queried.
    """
    if group in _ledgers or group.size() == 1:
        return _ledgers.get(group)
    _ledgers[group] = None
    try:
        store = dist.distributed_c10d._get_process_group_store(group)
        number = number_of(group)
        ledger = _ledgers[group] = Ledger(group.group_name, group.rank(), group.size(), store, number)
    except (KeyError, ValueError):  # a group that a test made without a store
        return None
    except RuntimeError as error:
        if ABSTRACT_STORE_MESSAGE not in str(error):
            del _ledgers[group]
            raise
        return None
    _responder.start()
    return ledger


class RunInGroup(NamedTuple):
    """A run of a program that this rank compares, and the program's collectives in one group."""

    ledger: Ledger
    run: RecordedRun
    collectives: Sequence[Collective]


class GroupCollectives(NamedTuple):
    """The collectives of a program in one group, and their strings, which the ranks compare."""

    collectives: Sequence[Collective]
    lines: tuple[str, ...]


def ledgers_of(groups: Mapping[str, GroupCollectives]) -> Iterator[tuple[Any, Ledger, GroupCollectives]]:
    """Yield the groups with a ledger, each with its ledger and the collectives of a program."""
    for name, members in groups.items():
        group = registered_group(name)
        ledger = None if group is None else ledger_of(group)
        if ledger is not None:
            yield group, ledger, members


def compare_first_run(groups: Mapping[str, GroupCollectives]) -> None:
    """Publish the first run of a program; raise `CollectivesDiffer` if another rank runs different collectives."""
    compare(
        [
            RunInGroup(ledger, ledger.begin(position_of(group), members.lines), members.collectives)
            for group, ledger, members in ledgers_of(groups)
        ]
    )


def note_run(groups: Mapping[str, GroupCollectives]) -> None:
    """Note a run of a program that was compared before, so that other ranks can ask for the program.

    The groups are looked up at each run, because the user may have destroyed and created them again.
    """
    for group, ledger, members in ledgers_of(groups):
        ledger.note(position_of(group), members.lines)


def compare(runs: Sequence[RunInGroup]) -> None:
    """Wait until all ranks have started programs with the same collectives, but at most `WAIT_SECONDS`.

    The time begins again when another rank answers that it is compiling.

    Raises `CollectivesDiffer` if another rank runs different collectives.
    """
    pending = [(own, rank) for own in runs for rank in range(own.ledger.size) if rank != own.ledger.rank]
    start, pause = time.monotonic(), FIRST_PAUSE
    seen = {own.ledger.compilation_of(rank) for own, rank in pending} | {b""}
    next_question_time = start + 2 * LONGEST_PAUSE  # ask after 0.1 seconds for the first time
    while pending := [(own, rank) for own, rank in pending if not compare_with_rank(own, rank)]:
        if (now := time.monotonic()) > start + WAIT_SECONDS:
            return
        if now > next_question_time:
            next_question_time = now + QUESTION_PAUSE
            compilations = {own.ledger.compilation_of(rank) for own, rank in pending}
            start = start if compilations <= seen else now
            seen |= compilations
            for own, rank in pending:
                own.ledger.ask(rank)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def compare_with_rank(own: RunInGroup, rank: int) -> bool:
    """Whether another rank runs the same collectives; False if that rank has not published enough for a decision.

    Raises `CollectivesDiffer` if that rank runs different collectives, or if a rank has reported a difference.
    """
    # A rank publishes its run before its error. Read the error first: if there is an error, its run can be read, too.
    message = own.ledger.error_of(own.run.key)
    with suppress(LookupError):
        lines = own.ledger.difference(rank, own.run)
        if lines is None:
            return True
        raise_difference(own, rank, lines)
    if message:
        raise CollectivesDiffer(message, fix=FIX, where=own.collectives[0].source)
    return False


def raise_difference(own_run: RunInGroup, rank: int, lines_of_rank: Sequence[str]) -> NoReturn:
    """Raise `CollectivesDiffer` for the first collective that differs between two ranks."""
    ledger, run, collectives = own_run
    index = first_difference(run.lines, lines_of_rank) or 0
    own, theirs = next(islice(zip_longest(collectives, lines_of_rank), index, None))
    where: SourceLine | None = (own or collectives[-1]).source
    on_own_rank, on_other_rank = (f"`{line}`" if line else "missing" for line in (own, theirs))
    message = (
        f"the compiled programs of the ranks differ: collective {index + 1} of the program in the process group "
        f"{ledger.name!r} is {on_own_rank} on rank {ledger.rank} and {on_other_rank} on rank {rank}"
    )
    ledger.report(run, message if where is None else f"{message} (rank {ledger.rank}: {where})")
    raise CollectivesDiffer(message, fix=FIX, where=where)


def raise_reported_error(programs: Sequence[RunningProgram], error: RuntimeError) -> None:
    """Raise `CollectivesDiffer` if a run failed because a rank has reported a difference or deadlock, or has ended."""
    for program in programs:
        with suppress(RuntimeError):
            if message := _watch.message_of(program.ledger) or program.ledger.error_of(program.ledger.last):
                raise CollectivesDiffer(message, fix=FIX) from error
            if message := ended_rank(program):
                where = program.collectives[program.last_started or 0].source
                raise CollectivesDiffer(message, fix=STEPS_FIX, where=where) from error


def running_programs(groups: Mapping[str, GroupCollectives]) -> list[RunningProgram]:
    """Return a `RunningProgram` for each group of a program that begins now."""
    several = len(groups) > 1
    return [
        RunningProgram(group, ledger, members.collectives, several) for group, ledger, members in ledgers_of(groups)
    ]


def start_answering(trace: Trace) -> None:
    """Start the thread that answers other ranks in the groups of a trace, because compiling the trace takes long."""
    if os.environ.get(COMPARE_VARIABLE) != "0":
        for name in groups_of(collectives_of(trace)):
            if (group := registered_group(name)) is not None:
                ledger_of(group)


def compare_first(function: Callable[..., Any], trace: Trace) -> Callable[..., Any]:
    """Return a function that runs a trace, and that compares the collectives of the ranks before its first call.

    `function` is the trace's function without the comparison.
    """
    return compare_collectives_first(function, collectives_of(trace))


def compare_collectives_first(function: Callable[..., Any], collectives: Sequence[Collective]) -> Callable[..., Any]:
    """Return a function that calls `function`, and that compares `collectives` with other ranks before the first call.

    `collectives` are the collectives that `function` calls.
    """
    members = groups_of(collectives)
    groups = {name: GroupCollectives(of_group, tuple(map(str, of_group))) for name, of_group in members.items()}
    if not groups or os.environ.get(COMPARE_VARIABLE) == "0":
        return function
    is_compared = False

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_compared
        if is_compared:
            note_run(groups)
        else:
            compare_first_run(groups)
            is_compared = True
        programs = _watch.programs[key := object()] = running_programs(groups)
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            raise_reported_error(programs, error)
            raise
        finally:
            del _watch.programs[key]

    return run
