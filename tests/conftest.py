"""Settings of all tests: one thread, no network, repeatable property tests; GPU tests run only with a GPU."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("PYTHONUNBUFFERED", None)  # users do not set it, and it hides output written at the end of a process
os.environ.setdefault("THUNDER_INTERNAL_ERRORS", "raise")  # a call in eager PyTorch, with a warning, would hide them
# Tests and later runs share the kernels that tests compile. Tests of the cache use separate folders.
BUILD = Path(__file__).resolve().parent.parent / "build"
os.environ.setdefault("THUNDER_TUNE", "0s")  # measurements would choose other kernels from run to run
os.environ.setdefault("THUNDER_CACHE_DIR", str(BUILD / "test-cache"))
os.environ.setdefault("THUNDER_PRECOMPILED_HEADERS", str(BUILD / "test-headers"))

# If no GPU is tested, Triton's kernels run in its interpreter. Triton reads the setting when it is imported, which
# may happen in a folder's conftest before `pytest_configure`. xdist's workers inherit the setting from their parent.
if "gpu" not in sys.argv and "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["TRITON_INTERPRET"] = "1"

# The list of tests that take at least `SECONDS`, and of files with a fixture that takes at least `FIXTURE_SECONDS`. A
# run of all tests runs one part of the list. `tests.long_tests` writes the list.
LONG = Path(__file__).resolve().parent / "long.txt"
SECONDS = 0.12
FIXTURE_SECONDS = 2.0
PARTS = 30
DISTRIBUTED, DISTRIBUTED_SECONDS = "tests/distributed/", 180
SETUP = "setup seconds"  # the property of a test's report with the time that its fixtures took
PART = "THUNDER_TEST_PART"  # the variable that names the part to the workers of pytest-xdist
ROTATION = "THUNDER_TEST_ROTATION"  # the variable with a number that decides which tests of a rotation run

settings.register_profile("default", deadline=None, derandomize=True, max_examples=100)
settings.register_profile("fuzz", deadline=None, derandomize=False, max_examples=5_000, print_blob=True)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    """Use Triton's interpreter and hide the GPU if and only if no GPU is tested."""
    # PyTorch writes its structured trace while the logger has a handler, and pytest adds a handler to each logger.
    logging.getLogger("torch.__trace").addHandler = lambda hdlr: None  # type: ignore[method-assign]
    if config.option.markexpr != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a model without a requested device runs on a GPU if there is one
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ[ROTATION] = str(rotation_number(config))
        os.environ[PART] = part_of_long_tests(config)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--all-cases` and `--part`."""
    parser.addoption("--all-cases", action="store_true", help="run every case of tests marked `sample`, and long tests")
    parser.addoption("--part", type=int, choices=range(PARTS), help="the part of the tests in tests/long.txt to run")


def sample_cases(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the items to run and the other items: `count` evenly spread cases of each test marked `sample(count)`."""
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        if (marker := item.get_closest_marker("sample")) is not None:
            cases.setdefault((item.nodeid.partition("[")[0], marker.args[0]), []).append(item)
    left_out: set[pytest.Item] = set()
    for (_, wanted), group in cases.items():
        count = min(wanted, len(group))
        left_out |= {*group} - {group[number * len(group) // count] for number in range(count)}
    return [item for item in items if item not in left_out], [item for item in items if item in left_out]


def pytest_report_header() -> str:
    """Return the line of the header that names the part of the long tests that runs."""
    part = os.environ[PART]
    words = f"part {part} of 0 to {PARTS - 1}" if part else "all"
    return f"long tests: {words} (--part N chooses, --all-cases runs all, and a path all that are below it)"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the seconds of the tests on several ranks, and the limit for the part that a run of all tests has."""
    entries = [entry for group in terminalreporter.stats.values() for entry in group]
    reports = [entry for entry in entries if isinstance(entry, pytest.TestReport)]
    seconds = [report.duration for report in reports if report.nodeid.startswith(DISTRIBUTED)]
    if seconds:
        limit = f" of {DISTRIBUTED_SECONDS}" if os.environ[PART] else ""
        terminalreporter.write_line(f"{DISTRIBUTED} took {sum(seconds):.0f}{limit} seconds, on all workers together")


def part_of_long_tests(config: pytest.Config) -> str:
    """Return the number of the part of the long tests to run; "" for all parts."""
    if config.getoption("--all-cases") or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return ""
    return str(int(os.environ[ROTATION]) % PARTS)


def rotation_number(config: pytest.Config) -> int:
    """Return the number of `--part`, or a number that depends on the commit, so that all parts run over time."""
    asked: int | None = config.getoption("--part")
    if asked is not None:
        return asked
    git = ["git", "-C", str(LONG.parent), "rev-parse", "HEAD"]
    try:
        return int(subprocess.run(git, capture_output=True, text=True, check=True).stdout, 16)
    except (OSError, subprocess.CalledProcessError):  # a source tree without its history
        return 0


def select_part(items: list[pytest.Item], part: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the items to run and the other items.

    One part of the long tests and files runs, with all tests that are short or marked `source`.
    """
    listed = LONG.read_text().splitlines()
    files, tests = [name for name in listed if "::" not in name], [name for name in listed if "::" in name]
    chosen = {name: number % PARTS == part for names in (files, tests) for number, name in enumerate(names)}

    def runs(item: pytest.Item) -> bool:
        of_test = chosen.get(item.nodeid, True)
        return chosen.get(item.nodeid.partition("::")[0], of_test) or item.get_closest_marker("source") is not None

    left_out = {item for item in items if not runs(item)}
    return [item for item in items if item not in left_out], [item for item in items if item in left_out]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the items to run, put the interpreter's tests first, and skip tests that need an absent GPU.

    Tests marked `sample` run with some cases, unless the command line names cases. The interpreter's tests compare the
    lifetimes of objects with CPython; after Dynamo was used in a process, objects live longer.
    """
    if not config.getoption("--all-cases") and not any("[" in name for name in config.args):
        items[:], left_out = sample_cases(items)
        config.hook.pytest_deselected(items=left_out)
        if part := os.environ[PART]:
            items[:], left_out = select_part(items, int(part))
            config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: "interpreter" not in item.path.parts)  # otherwise the order is unchanged
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Disable garbage collection while tests are collected: most objects are modules and tests, which live longer."""
    gc.set_threshold(*THRESHOLDS)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


IMPORTED_SINCE = 100  # modules, after which the existing objects are frozen again
# Python collects garbage a sixth as often as by default. The default takes a tenth of the tests' time.
# Tests of lifetimes collect explicitly.
THRESHOLDS = (700, 10, 60)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Before the first test of a file, exclude objects that imports created from garbage collection.

    These are millions of objects that live until the end. A collection that visits them takes most of a second, and
    tests of lifetimes collect often.
    """
    if item.path != _seen.path and len(sys.modules) >= _seen.modules + IMPORTED_SINCE:
        gc.freeze()
        _seen.modules = len(sys.modules)
    _seen.path = item.path
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record the time that the fixtures of a test took, for `tests.long_tests`."""
    if call.when == "setup":
        item.user_properties.append((SETUP, f"{call.duration:.3f}"))
    return (yield)


class _seen:
    """The file of the latest test, and the number of modules at the last call of `gc.freeze`."""

    path: Path | None = None
    modules = -IMPORTED_SINCE


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run kernels on one thread, because the models of the test are too small for several threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Disable garbage collection, for tests of lifetimes.

    `torch._dynamo`, which the first fake mode imports, calls `torch.fx.wrap`. That function refers to its own frame,
    and so the frames of the import and its callers would live until the next collection.
    """
    importlib.import_module("torch._dynamo")
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave Inductor out of Thunder's recipes, for tests that do not depend on the executor.

    Fixtures of a module or of the session are set up before this fixture, and therefore with all executors.
    """
    from tests.uncompiled import leave_inductor_out

    leave_inductor_out(monkeypatch)
