"""Reads and effects that can be neither guarded nor replayed are allowed, warned about or refused, by policy."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core import functional
from thunder_core.foundation.errors import (
    BadOption,
    CannotReplay,
    RecompileWarning,
    SharpEdgeError,
    SharpEdgeWarning,
    WrongInputs,
)
from thunder_core.frontend.acquire.outside.native_functions import KIND_OF_MODULE

X = torch.ones(2)
SCALE = 3.0
TABLE = {"n": 2}


def reads_a_file(x: Tensor) -> Tensor:
    with open(__file__) as file:  # noqa: PTH123
        return x * len(file.readline())


class Hidden:
    """An object whose comparison runs natively, deep inside the arguments of a C function."""

    def __eq__(self, other: object) -> bool:
        return bool(SCALE)

    __hash__ = object.__hash__


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else Hidden()


def compares(x: Tensor) -> Tensor:
    return x if nested(9) == nested(9) else -x


def starts_a_thread(x: Tensor) -> Tensor:
    thread = threading.Thread(target=compares, args=(1,))
    thread.start()
    thread.join()
    return x + 1


def measures_a_span(x: Tensor) -> tuple[Tensor, bool]:
    start = time.perf_counter()
    return x + 1, time.perf_counter() >= start


FOLDER = tempfile.mkdtemp()


def writes_a_file(x: Tensor) -> Tensor:
    open(f"{FOLDER}/written", "w").close()  # noqa: PTH123
    return x + 1


def draws_into_an_array(x: Tensor) -> Tensor:
    np.random.default_rng(1).random(out=np.zeros(3))
    return x + 1


EDGES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "span": (measures_a_span, "the time: perf_counter is read when the call begins"),
    "file": (reads_a_file, "input and output"),
}
# Sharp edges that are also reported if they are allowed.
LOUD: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "thread": (starts_a_thread, "code in another thread"),
    "file that is written": (writes_a_file, "input and output: open"),
    "process": (lambda x: (os.system("true"), x)[1], "the outside world: posix.system"),
    "folder": (lambda x: (os.chmod(FOLDER, 0o700), x)[1], "the outside world: posix.chmod"),  # noqa: PTH101
    "draw into an array": (draws_into_an_array, "randomness outside torch: Generator.random"),
}


@pytest.mark.parametrize("name", [*EDGES, *LOUD])
def test_each_policy_allows_warns_or_refuses(name: str) -> None:
    program, message = {**EDGES, **LOUD}[name]
    with pytest.raises(SharpEdgeError, match=message) as caught:
        thunder.jit(program, sharp_edges="error")(X)
    assert caught.value.where is not None
    assert caught.value.where.filename == __file__
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        thunder.jit(program, sharp_edges="warn")(X)
    of_edge = [warning for warning in warned if message in str(warning.message)]
    assert {warning.filename for warning in of_edge} == {__file__}
    with warnings.catch_warnings(record=True) as loud:
        warnings.simplefilter("always")
        compiled = thunder.jit(program)
        compiled(X)
    if name == "thread":  # eager PyTorch makes the call
        assert any("starts a thread" in str(warning.message) for warning in loud)
        return
    assert any(message in str(warning.message) for warning in loud) == (name in LOUD)
    assert any(message in edge.what for edge in thunder.last_program(compiled).sharp_edges)


class Threads:
    """Programs that compute in another thread, and write there."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.executor = ThreadPoolExecutor(1)
        self.executor.submit(len, ()).result()

    def _work(self, x: Tensor) -> None:
        self.written.append(x * 2)

    def thread(self, x: Tensor) -> Tensor:
        thread = threading.Thread(target=self._work, args=(x,))
        thread.start()
        thread.join()
        return self.written[-1] + 1

    def new_executor(self, x: Tensor) -> Any:
        with ThreadPoolExecutor(2) as executor:
            return list(executor.map(torch.sin, [x, x + 1]))

    def given_executor(self, x: Tensor) -> Tensor:
        self.executor.submit(self._work, x).result()
        return self.written[-1] + 1


@pytest.mark.parametrize("name", ["thread", "new_executor", "given_executor"])
def test_program_with_threads_runs_in_eager_pytorch(name: str) -> None:
    ours, eagers = Threads(), Threads()
    compiled = thunder.jit(getattr(ours, name))
    for step in range(4):
        with pytest.warns(thunder.RecompileWarning, match="starts a thread") if step == 0 else nullcontext():
            result = compiled(X + step)
        torch.testing.assert_close(result, getattr(eagers, name)(X + step))
        torch.testing.assert_close(ours.written, eagers.written)


@pytest.mark.parametrize("read", [time.time, time.monotonic, time.perf_counter_ns])
def test_clock_is_read_at_each_call(read: Callable[[], float]) -> None:
    compiled = thunder.jit(lambda x: x.double() * read(), sharp_edges="error")
    before = read()
    found = [compiled(X)[0].item() for _ in range(3)]
    assert before <= found[0] < found[1] < found[2] <= read()
    assert thunder.cache_misses(compiled) == 1


def test_date_of_now_comes_from_the_call() -> None:
    compiled = thunder.jit(lambda x: (x + 1, dt.datetime.now(dt.UTC)), sharp_edges="error")
    first, second = (compiled(X)[1] for _ in range(2))
    assert first < second <= dt.datetime.now(dt.UTC)


def test_program_sleeps_at_each_call() -> None:
    compiled = thunder.jit(lambda x: (time.sleep(0.05), x + 1)[1], sharp_edges="error")
    for _ in range(2):
        compiled(X)
        start = time.perf_counter()
    compiled(X)
    assert time.perf_counter() - start >= 0.05


def asks_for_the_folder(x: Tensor) -> Any:
    return x + 1, os.getcwd()  # noqa: PTH109


def test_working_folder_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled = thunder.jit(asks_for_the_folder, sharp_edges="error")
    for name in ("a", "b", "a"):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)
        assert compiled(X)[1] == str(tmp_path / name)


def test_new_file_is_noticed(tmp_path: Path) -> None:
    compiled = thunder.jit(lambda x: x * (tmp_path / "file").exists(), sharp_edges="error")
    assert not compiled(X).any()
    (tmp_path / "file").write_text("text", encoding="utf-8")
    assert compiled(X).all()
    (tmp_path / "file").unlink()
    assert not compiled(X).any()


def test_file_that_was_written_to_is_read_again(tmp_path: Path) -> None:
    compiled = thunder.jit(lambda x: x * int((tmp_path / "file").read_text(encoding="utf-8")))
    for number in (1, 22, 333):
        (tmp_path / "file").write_text(str(number), encoding="utf-8")
        assert torch.equal(compiled(X), X * number)


def test_variable_that_the_program_sets_is_in_the_environment_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor, value: str) -> Tensor:
        os.environ["THUNDER_TEST_SET"] = value
        return x + 1

    monkeypatch.setenv("THUNDER_TEST_SET", "before")
    compiled = thunder.jit(program, sharp_edges="error")
    for value in ("one", "two"):
        compiled(X, value)
        assert os.environ["THUNDER_TEST_SET"] == value


# Prints each function of a C module of the standard library.
LISTING = r"""
import importlib, os, sys, sysconfig, types, warnings
warnings.simplefilter("ignore")
folder = sysconfig.get_config_var("DESTSHARED") or os.path.join(sysconfig.get_path("platstdlib"), "lib-dynload")
for name in sorted({*sys.builtin_module_names, *(file.partition(".")[0] for file in os.listdir(folder))}):
    if not name.startswith(("_test", "_xx", "xx", "_tkinter", "__")):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        print(*{value.__self__.__name__ for value in vars(module).values()
                if type(value) is types.BuiltinFunctionType and type(value.__self__) is types.ModuleType})
"""


def test_each_c_module_of_the_standard_library_is_listed() -> None:
    names = subprocess.run([sys.executable, "-c", LISTING], capture_output=True, text=True, check=True).stdout.split()
    assert len(set(names)) > 50
    assert sorted(set(names) - KIND_OF_MODULE.keys()) == []


def test_function_that_runs_natively_is_warned_or_refused() -> None:
    message = "Hidden.__eq__ ran natively"
    with pytest.raises(SharpEdgeError, match=message):
        thunder.jit(compares, sharp_edges="error")(X)
    with pytest.warns(SharpEdgeWarning, match=message):
        thunder.jit(compares, sharp_edges="warn")(X)


def test_plain_program_has_no_sharp_edge() -> None:
    compiled = thunder.jit(lambda x: torch.nn.functional.gelu(x) * SCALE + TABLE["n"], sharp_edges="error")
    compiled(X)
    assert thunder.last_program(compiled).sharp_edges == ()


def test_environment_variables_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_TEST_SCALE", "2")
    compiled = thunder.jit(lambda x: x * float(os.environ.get("THUNDER_TEST_SCALE", "1")))
    assert torch.equal(compiled(X), X * 2)
    monkeypatch.setenv("THUNDER_TEST_SCALE", "5")
    assert torch.equal(compiled(X), X * 5)


def test_program_prints_at_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: Tensor) -> Tensor:
        print("shape", tuple(x.shape), sep=": ")
        print(x + 1)
        return x * 2

    compiled = thunder.jit(program)
    for _ in range(2):
        compiled(X)
        ours = capsys.readouterr().out
        program(X)
        assert ours == capsys.readouterr().out


def test_functional_jit_lists_every_read_with_its_line() -> None:
    local = 5

    def program(x: Tensor) -> Tensor:
        y = x * SCALE
        return y + TABLE["n"] + local

    with pytest.raises(SharpEdgeError) as caught:
        functional.jit(program)(X)
    message = str(caught.value)
    for text in ("SCALE", "TABLE['n']", "closure local of program", f"{Path(__file__).name}:"):
        assert text in message, text
    assert functional.jit(lambda x, n: torch.relu(x) * n)(X, 2).tolist() == [2.0, 2.0]


def test_functional_jit_binds_constants_if_sharp_edges_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = functional.jit(lambda x, n: x * SCALE * n, sharp_edges="allow")
    assert torch.equal(compiled(X, 1), X * 3)
    monkeypatch.setitem(globals(), "SCALE", 100.0)
    assert torch.equal(compiled(X, 1), X * 3), "bound when it was compiled"
    assert torch.equal(compiled(X, 2), X * 200), "arguments are guarded"


def test_functional_jit_refuses_modules_and_unknown_policies() -> None:
    with pytest.raises(WrongInputs, match="Linear is a module"):
        functional.jit(torch.nn.Linear(2, 2))
    with pytest.raises(BadOption, match="maybe"):
        thunder.jit(lambda x: x, sharp_edges="maybe")  # type: ignore[arg-type]


def reads_its_file(x: Tensor) -> Tensor:
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/scale", "w") as file:  # noqa: PTH123
            file.write("3")
        with open(f"{folder}/scale") as file:  # noqa: PTH123
            return x * int(file.read())


def saves_and_loads(x: Tensor) -> Tensor:
    with tempfile.NamedTemporaryFile() as file:
        torch.save({"scale": 3}, file.name)
        return x * torch.load(file.name)["scale"]


def looks_for_its_file(x: Tensor) -> Tensor:
    with tempfile.NamedTemporaryFile() as file:
        return x * (2 + os.path.exists(file.name))  # noqa: PTH110


@pytest.mark.parametrize("program", [reads_its_file, saves_and_loads, looks_for_its_file])
@pytest.mark.filterwarnings("ignore::thunder_core.errors.SharpEdgeWarning")
def test_eager_makes_the_calls_of_a_program_that_reads_a_file_which_it_writes(program: Callable[..., Tensor]) -> None:
    compiled = thunder.jit(program, executors=("torch",))
    with pytest.warns(RecompileWarning, match="which it has changed itself"):
        assert compiled(X).tolist() == [3.0, 3.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        assert compiled(X * 2).tolist() == [6.0, 6.0]
    with pytest.raises(CannotReplay, match="which it has changed itself"):
        thunder.jit(program, data_dependent="error")(X)
