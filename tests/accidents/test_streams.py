"""Accidents with the streams and limits of a process. Each runs in a separate process that imports no PyTorch."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

THUNDER = f"{shlex.quote(sys.executable)} -m thunder_cli.main"
# A shell command, its exit status, and a part of its stderr. {thunder} is the command.
LINES: tuple[tuple[str, int, str], ...] = (
    ("{thunder} recipes >&-", 0, ""),
    ("{thunder} recipes --json >&-", 0, ""),
    ("{thunder} explain TH0201 <&- >&- 2>&-", 0, ""),
    ("{thunder} recipes >/dev/full", 7, "error TH0701"),
    ("{thunder} recipes --json >/dev/full", 7, "error TH0701"),
    ("{thunder} --help >/dev/full", 7, "error TH0701"),
    ("{thunder} verify nowhere --json >/dev/full", 6, "error TH0601"),
    ("{thunder} verify nowhere --json >&-", 6, ""),
    ("{thunder} verify nowhere 2>&-", 6, ""),
    ("{thunder} verify nowhere 2>/dev/full", 6, ""),
    ("{thunder} verify nowhere >&- 2>&-", 6, ""),
    ("{thunder} bogus >/dev/full 2>/dev/full", 2, ""),
    ("{thunder} recipes | head -n 1 >/dev/null; exit ${{PIPESTATUS[0]}}", 0, ""),
    *(
        (f"{{thunder}} {command} | head -n 0; exit ${{{{PIPESTATUS[0]}}}}", 0, "")
        for command in ("recipes", "recipes --json", "cache list", "explain TH0201", "--help", "validate --help")
    ),
    *((f"COLUMNS={columns} {{thunder}} recipes | grep hf-bert", 0, "") for columns in (0, 1, 19, "abc", "-5", "")),
    *((f"COLUMNS={columns} {{thunder}} --help | grep optimize", 0, "") for columns in (0, 1)),
    ("mkdir gone && cd gone && rmdir ../gone && {thunder} verify nowhere", 2, "error TH0207 the working directory"),
    ("mkdir gone && cd gone && rmdir ../gone && {thunder} optimize", 2, "error TH0207 the working directory"),
    ("mkdir gone && cd gone && rmdir ../gone && {thunder} recipes >/dev/null", 0, ""),
    ("cd /proc && {thunder} optimize", 2, "error TH0207 /proc cannot be written"),
    ("ulimit -v 500000; {thunder} optimize --recipe default", 7, "error TH0702"),
    ("LC_ALL=C PYTHONUTF8=0 {thunder} verify $(printf 'a\\xff')", 2, "error TH0201"),
)


@pytest.mark.parametrize(("line", "status", "says"), LINES, ids=[line for line, _, _ in LINES])
def test_a_stream_or_a_limit_changes_no_status(line: str, status: int, says: str, tmp_path: Path):
    command = ["bash", "-c", line.format(thunder=THUNDER)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error TH") == bool(says), done.stderr
    assert list(tmp_path.iterdir()) == []
