"""The entry point: messages, exit statuses, speed, and the stream of each output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from thunder_cli import main as entry
from thunder_cli.app import version
from thunder_cli.console import TrimmedStream
from thunder_core.foundation import errors, plugins

HEAVY = ("torch", "transformers", "numpy", "matplotlib", "huggingface_hub")
PROBE = """
import sys
from thunder_cli.main import main
status = main(sys.argv[1:])
print(*sorted(set(sys.modules) & {heavy!r}), file=sys.stderr)
raise SystemExit(status)
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["optimize", "--help"], ["--version"], ["explain"], ["recipes"], ["cache"]]
)
def test_commands_without_a_model_import_no_torch(arguments):
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=set(HEAVY)), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr.strip() == ""


BAD_SIZES = [
    ("--dynamic", "sequence=1:8", "did you mean seq"),
    ("--dynamic", "seq=8:1", "is an empty range"),
    ("--dynamic", "seq=-1:8", "is not a range"),
    ("--dynamic", "seq=1:8", "--dynamic", "seq=1:9", "gives seq twice"),
    ("--dynamic", "seq=1:8", "--seq", "9", "--seq is 9, outside the range seq=1:8"),
    ("--dynamic", "cache=1:8", "--cache", "0", "--cache is 0, outside the range cache=1:8"),
    ("--cache", "4", "--train", "exclude each other"),
    ("--height", "0", "--height"),
]


def test_sizes_that_cannot_be_are_refused_without_torch():
    calls = "".join(f"main({['optimize', 'nothing', *arguments[:-1]]!r})\n" for arguments in BAD_SIZES)
    found = "bool(sys.modules.keys() & {'torch', 'transformers', 'numpy'})"
    probe = f"import sys\nfrom thunder_cli.main import main\n{calls}raise SystemExit({found})"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    output = " ".join(done.stderr.split())
    assert output.count("error") == len(BAD_SIZES), done.stderr
    assert all(arguments[-1] in output for arguments in BAD_SIZES), done.stderr


def test_help_takes_under_half_a_second():
    def once():
        before = os.times()
        subprocess.run([sys.executable, "-m", "thunder_cli.main", "--help"], capture_output=True, check=True)
        after = os.times()  # CPU time, because other work on the machine must not count
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(once() for _ in range(5)) < 0.5


def test_help_names_every_command(thunder):
    done = thunder("--help")
    assert done.status == 0
    assert all(name in done.out for name in plugins.names("commands"))
    assert {"optimize", "bench", "cache", "recipes", "executors", "doctor", "explain"} <= set(plugins.names("commands"))


def test_a_flag_may_come_again_and_a_value_may_not(thunder):
    assert thunder("explain", "TH0201", "--debug", "--debug").status == 0
    for command in (("optimize", "--seed=1", "--seed", "1"), ("cache", "prune", "--max-size", "1", "--max-size", "2")):
        done = thunder(*command)
        assert (done.status, done.out) == (2, "")
        assert "was given 2 times" in done.err


def test_without_a_command_the_help_is_shown_and_nothing_else(thunder):
    done, asked = thunder(), thunder("--help")
    assert (done.status, done.err, asked.status) == (2, "", 0)
    assert done.out.strip() == asked.out.strip()


def test_a_pipe_gets_no_blanks_at_the_ends_of_lines():
    stream = io.StringIO()
    TrimmedStream(stream).write("a  \x1b[2m \x1b[0m\n   \nb \x1b[1mc\x1b[0m\n d ")
    assert stream.getvalue() == "a\x1b[2m\x1b[0m\n\nb \x1b[1mc\x1b[0m\n d "


def test_version(thunder):
    assert thunder("--version").out == f"thunder {version()}\n"


def test_an_unknown_command_suggests_the_nearest(thunder):
    done = thunder("optimise")
    assert (done.status, done.out) == (2, "")
    assert "Did you mean 'optimize'" in done.err
    assert "TH0201" in done.err


def test_an_unknown_option_suggests_the_nearest(thunder):
    done = thunder("optimize", "--recip", "default")
    assert done.status == 2
    assert "--recipe" in done.err
    assert "thunder optimize --help" in done.err


def test_a_wrong_type_is_a_usage_error(thunder):
    done = thunder("optimize", "--batch", "many")
    assert done.status == 2
    assert "--batch" in done.err


def test_errors_are_json_on_stdout_when_asked(thunder):
    done = thunder("explain", "TH999", "--json")
    assert done.status == 2
    assert done.err == ""
    assert done.json["schema"] == "thunder.error/1"
    assert done.json["error"]["code"] == "TH0202"
    usage = thunder("explain", "--json", "--jsno")
    assert usage.json["error"]["status"] == usage.status == 2


class Failing:
    """An application whose command raises."""

    def __init__(self, error):
        self.error = error

    def __call__(self, **_):
        raise self.error


def fail_with(monkeypatch, error):
    monkeypatch.setattr(entry, "build_app", lambda: Failing(error))


@pytest.mark.parametrize("kind", list(errors.all_errors()), ids=lambda kind: kind.code)
def test_every_error_gives_its_status_code_and_fix(thunder, monkeypatch, kind):
    fail_with(monkeypatch, kind("what is wrong", fix="what to do", where=errors.SourceLine("model.py", 7, "forward")))
    done = thunder("anything")
    assert done.status == kind.status
    assert all(part in done.err for part in (kind.code, "what is wrong", "what to do", "model.py:7, in forward"))
    assert "Traceback" not in done.err
    assert done.out == ""


def test_infinities_that_were_measured_are_words_in_json(thunder, monkeypatch):
    from thunder_core.workflow.benchmark import Comparison, Interval

    interval = Interval(value=1.0, low=float("nan"), high=float("inf"))
    row = Comparison(
        configuration={},
        candidate="thunder",
        speedup=interval,
        baseline=interval,
        slowdown=1,
        too_slow=True,
        within_noise=True,
    )
    error = errors.SlowerThanBaseline("slow", fix="speed up")
    error.rows = (row,)
    fail_with(monkeypatch, error)
    assert thunder("bench", "--json").json["error"]["rows"][0]["speedup"] == {
        "value": 1.0,
        "low": "NaN",
        "high": "Infinity",
    }


def test_completion_knows_recipes():
    environment = os.environ | {
        "_THUNDER_COMPLETE": "complete_bash",
        "COMP_WORDS": "thunder optimize --recipe hf-llama3",
        "COMP_CWORD": "3",
    }
    script = "from thunder_cli.main import main; raise SystemExit(main([]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["hf-llama3", "hf-llama3-hopper"]


def test_unexpected_exceptions_are_reported_as_bugs(thunder, monkeypatch):
    fail_with(monkeypatch, ZeroDivisionError("division by zero"))
    done = thunder("anything")
    assert done.status == 70
    assert "ZeroDivisionError: division by zero" in done.err
    assert "report it" in done.err
    assert "Traceback" not in done.err
    assert "Traceback" in thunder("anything", "--debug").err


def test_ctrl_c_exits_with_130(thunder, monkeypatch):
    fail_with(monkeypatch, KeyboardInterrupt())
    done = thunder("anything")
    assert done.status == 130
    assert "nothing was written" in done.err


def test_ctrl_c_inside_a_command_exits_with_130(thunder, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("thunder_cli.commands.explain.all_errors", interrupted)
    assert thunder("explain").status == 130


def test_the_no_color_variable_is_respected(monkeypatch):
    command = [sys.executable, "-m", "thunder_cli.main", "explain", "TH0202"]
    environment = {"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    coloured = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    plain = subprocess.run(command, capture_output=True, text=True, env=environment | {"NO_COLOR": "1"}, check=True)
    assert "\x1b[1;31m" in coloured
    assert "31m" not in plain.stdout


def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m thunder_cli.main explain | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("code")
    assert done.stderr == ""


def test_completion_is_offered_for_the_shells(thunder):
    done = thunder("--help")
    assert "--install-completion" in done.out
    assert "--show-completion" in done.out


def test_an_unknown_value_is_named_without_the_words_of_the_parser(thunder):
    done = thunder("inspect-trace", "artifact", "--trace", "first")
    assert done.status == 2
    assert "Value error" not in done.err
    assert "'first' is not one of 'prologue', 'computation'" in done.err


@pytest.mark.parametrize("group", ["cache", "keys", "recipes"])
def test_json_before_the_name_of_an_inner_command_is_refused(thunder, group):
    done = thunder(group, "--json", "list")
    assert done.status == 2
    assert json.loads(done.out)["error"]["fix"] == f"write `thunder {group} list --json`"
    assert json.loads(thunder(group, "--json").out)["schema"].startswith("thunder.")
