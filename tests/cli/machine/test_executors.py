"""`thunder executors --of`: the executors that run an artifact's program, and the refused operations."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

import thunder_core as thunder_library
from thunder_cli.commands.executors import print_all

QUICK = ("--seq", "8", "--runs", "2", "--warmup", "0", "--quiet")


def test_an_artifacts_executors(thunder, here):
    command = [sys.executable, "-m", "thunder_cli.main", "optimize", "--recipe", "hf-llama", "--out", "made", *QUICK]
    (here.parent / "cxx").write_text('#!/bin/sh\ncase "$*" in *kernels.cpp*) exit 1;; esac\nexec g++ "$@"\n')
    (here.parent / "cxx").chmod(0o755)
    hidden = {**os.environ, "CXX": str(here.parent / "cxx"), "THUNDER_CACHE_DIR": str(here / "empty")}
    hidden["THUNDER_PRECOMPILED_HEADERS"] = ""  # this compiler would compile separate headers
    # PyTorch keeps the compiler that the environment named when PyTorch was imported.
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = thunder("executors", "--of", "made", "--json").json
    assert found["schema"] == "thunder.executors-of/1"
    rows = {row["executor"]: row for row in found["executors"]}
    assert rows["torch"]["operations"] > 0
    assert sum(row["time_share"] for row in rows.values()) == 1.0
    refused = {row["executor"]: row for row in found["refused"]}
    assert refused["inductor"]["operations"] > 0
    assert "cxx could not compile" in refused["inductor"]["reason"]
    text = thunder("executors", "--of", "made").out
    assert all(words in text for words in ("torch", "100%", "Operations that executors refused", "inductor"))


def test_artifact_without_a_report_is_refused(thunder, here):
    compiled = thunder_library.jit(torch.nn.Linear(2, 2))
    compiled(torch.ones(1, 2))
    thunder_library.save(compiled, here / "saved")
    done = thunder("executors", "--of", "saved")
    assert done.status == 2
    assert "saved has no report" in done.err


def test_a_name_with_of_is_refused(thunder):
    done = thunder("executors", "inductor", "--of", "made")
    assert done.status == 2
    assert "--of shows all executors of made" in done.err and "leave out the name" in done.err


def test_long_words_are_not_cut_in_a_narrow_table(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    name = "torch.nn.functional." + "a" * 60
    print_all([{"name": "mine", "available": False, "reason": f"install {name}", "claims": name, "summary": ""}])
    printed = capsys.readouterr().out
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed
    assert printed.count("a" * 10) >= 6
