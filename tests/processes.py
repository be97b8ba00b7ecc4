"""Python processes for tests that run a program like its user: `run_python` replaces `subprocess.run`.

A new process takes seconds to import PyTorch and transformers before it runs Thunder. Therefore these processes are
forked from a process that has imported both libraries, and nothing of Thunder. A test of imports, of signals, of
`PYTHON...` variables or of a cold start must start a new process.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

IMPORTED = ("torch", "transformers.models.llama.modeling_llama")
PACKAGES = sys.path[1:]  # folders of Python and of installed packages; this process starts without a PYTHONPATH


def run_python(
    *arguments: str | Path, cwd: str | Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments (`-W FILTER`, then `-c CODE`, `-m MODULE` or a file, and its arguments)."""
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        order = {"arguments": words, "cwd": str(cwd or Path.cwd()), "env": dict(env or os.environ)}
        status = _ask(_forker(), {**order, "out": str(out), "err": str(err)})
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in (out, err))
        return subprocess.CompletedProcess([sys.executable, *words], status, *texts)


@functools.cache
def _forker() -> subprocess.Popen[str]:
    """The process that forks. It starts at the first use and ends with this process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    pipe = subprocess.PIPE
    found = subprocess.Popen([sys.executable, __file__], env=environment, stdin=pipe, stdout=pipe, text=True)
    atexit.register(lambda: found.communicate(timeout=10))
    return found


def _ask(forker: subprocess.Popen[str], order: Mapping[str, Any]) -> int:
    assert forker.stdin is not None and forker.stdout is not None
    forker.stdin.write(json.dumps(order) + "\n")
    forker.stdin.flush()
    return int(forker.stdout.readline())


# ---- in the process that forks, and in those that it forks ----------------------------------------------------------


def serve() -> None:
    """Import the libraries, then fork a process for each line of stdin, and answer with its exit status."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # a child's garbage collection need not visit or copy it
    for line in sys.stdin:
        child = os.fork()
        if not child:
            finish(run(**json.loads(line)))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)


def finish(status: int) -> NoReturn:
    """End like Python, but without destroying the modules, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def run(arguments: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> int:
    """Act like a Python started with these arguments, and return its exit status."""
    for descriptor, (path, flags) in enumerate(((os.devnull, os.O_RDONLY), (out, os.O_WRONLY), (err, os.O_WRONLY))):
        os.dup2(os.open(path, flags | os.O_CREAT), descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    while arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        arguments = arguments[2:]
    try:
        start(arguments, [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path])
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return int(end.code or 0) if not isinstance(end.code, str) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def start(arguments: Sequence[str], paths: Sequence[str]) -> None:
    """Run the code, the module or the file as `__main__`."""
    kind, *rest = arguments
    own = {"-c": "", "-m": str(Path.cwd())}.get(kind, str(Path(kind).resolve().parent))
    sys.path[:] = [own, *paths, *PACKAGES]
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    serve()
