"""Accidents on the command line: impossible names, numbers and paths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.accidents.accident import Accident, World

NOT_TEXT = b"\xff\xfe".decode(errors="surrogateescape")
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("bogus", "TH0201", "No such command 'bogus'"),
    ("optimise", "TH0201", "No such command 'optimise'"),
    ("optimize {llama} --bogus 1", "TH0201", "there is no option --bogus"),
    ("optimize {llama} --recip default", "TH0201", "did you mean --recipe"),
    ("optimize {llama} --recipe", "TH0201", "requires an argument"),
    ("optimize {llama} --seq 8 --seq 9", "TH0201", "--seq was given 2 times"),
    ("optimize {llama} {llama}", "TH0201", "unexpected extra argument"),
    ("optimize {llama} --recipe bogus", "TH0202", "there is no recipe called 'bogus'"),
    ("optimize {llama} --recipe hf-lama", "TH0202", "did you mean hf-llama"),
    ("optimize {llama} --recipe ''", "TH0202", "there is no recipe called ''"),
    ("optimize {llama} --recipe default+", "TH0202", "there is no recipe"),
    ("optimize {llama} --recipe nowhere.py", "TH0202", "does not exist"),
    ("optimize {llama} --recipe {files}/none.py:Mine", "TH0202", "does not exist"),
    ("optimize {llama} --add-executor bogus", "TH0202", "there is no executor called 'bogus'"),
    ("optimize {llama} --add-transform Bogus", "TH0202", "there is no transform called 'Bogus'"),
    ("optimize {llama} --add-transform 'Autocast('", "TH0201", "is not the name of a transform"),
    ("optimize {llama} --add-transform 'Autocast(x=1)'", "TH0201", "is not valid"),
    ("optimize {llama} --without bogus", "TH0202", "is named 'bogus'"),
    ("optimize {llama} --set bogus=1", "TH0202", "has no option 'bogus'"),
    ("optimize {llama} --set bogus", "TH0201", "is not of the form"),
    ("optimize {llama} --set =1", "TH0201", "is not of the form"),
    ("optimize {llama} --set a=1 --set a=2", "TH0201", "gives a twice"),
    ("optimize {llama} --recipe int8-weight-only --set error=1e999", "TH0201", "finite number"),
    ("optimize {llama} --recipe int8-weight-only --set error=inf", "TH0201", "finite number"),
    ("optimize {llama} --recipe int8-weight-only --set error=nan", "TH0201", "finite number"),
    ("optimize {llama} --recipe int8-weight-only --set error=-1", "TH0201", "greater than 0"),
    ("optimize {llama} --recipe int8-weight-only --set error=few", "TH0201", "valid number"),
    ("optimize {llama} --compiler gcc", "TH0201", "--compiler is 'gcc'"),
    ("optimize {llama} --dtype float7", "TH0202", "there is no dtype called 'float7'"),
    ("optimize {llama} --outputs list", "TH0201", "--outputs is 'list'"),
    ("optimize {llama} --device tpu", "TH0202", "'tpu'"),
    ("optimize {llama} --device cuda:99", "TH0302", ""),
    ("optimize {llama} --batch 0", "TH0201", "--batch is 0"),
    ("optimize {llama} --batch -3", "TH0201", "--batch is -3"),
    ("optimize {llama} --batch two", "TH0201", "a valid integer"),
    ("optimize {llama} --batch 1.5", "TH0201", "a valid integer"),
    ("optimize {llama} --seq 0", "TH0201", "--seq is 0"),
    ("optimize {llama} --seq 65", "TH0209", "65"),
    ("optimize {llama} --seq 99999999999999999999", "TH0209", "is longer than the model's 64"),
    ("optimize {llama} --runs 0", "TH0201", "--runs is 0"),
    ("optimize {llama} --inputs 0", "TH0201", "--inputs is 0"),
    ("optimize {llama} --seed -1", "TH0201", "--seed is -1"),
    ("optimize {llama} --seed 9223372036854775808", "TH0201", "--seed is 9223372036854775808"),
    ("optimize {llama} --validate-budget inf", "TH0201", "a finite number"),
    ("optimize {llama} --validate-budget nan", "TH0201", "a finite number"),
    ("optimize {llama} --require-speedup inf", "TH0201", "a finite number"),
    ("optimize {llama} --require-speedup 1e999", "TH0201", "a finite number"),
    ("optimize {llama} --require-speedup 2 --no-benchmark", "TH0201", "exclude each other"),
    ("optimize {llama} --search 0s", "TH0201", "--search leaves no time"),
    ("optimize {llama} --search abc", "TH0201", "--search is 'abc'"),
    ("optimize {llama} --search -5m", "TH0201", "--search is '-5m'"),
    ("optimize {llama} --search 9999h", "TH0201", "more than a week"),
    ("optimize {llama} --search 1m --objective speed", "TH0202", "there is no objective called 'speed'"),
    ("optimize {llama} --search 1m --recipe hf-llama", "TH0201", "--search and --recipe exclude each other"),
    ("optimize {llama} --search 1m --set a=1", "TH0201", "--search and --set exclude each other"),
    ("optimize {llama} --search 1m --no-validate", "TH0201", "each candidate is validated"),
    ("optimize {llama} --search 1m --target sm_90", "TH0201", "measured on this machine"),
    ("optimize {llama} --search 1m --train --max-kl 1", "TH0201", "--max-kl and --train exclude each other"),
    ("optimize {llama} --search 1m --min-top1 1.5", "TH0201", "less than or equal to 1"),
    ("optimize {llama} --search 1m --max-kl -1", "TH0201", "greater than or equal to 0"),
    ("optimize {llama} --search 1m --max-kl nan", "TH0201", "a finite number"),
    ("optimize {llama} --search 1m --max-memory lots", "TH0201", "which is not a size"),
    ("optimize {llama} --search 1m --max-memory 0", "TH0201", "--max-memory is 0"),
    ("optimize {llama} --max-kl 0.1", "TH0201", "--max-kl is for a search"),
    ("bench {llama} --search 1m", "TH0201", "add --candidates"),
    ("bench {llama} --candidates --against inductor", "TH0201", "cannot be used with --candidates"),
    ("bench {llama} --candidates --batch 1,2", "TH0201", "several sizes"),
    ("bench {llama} --candidates --plot a.png", "TH0201", "cannot be used with --candidates"),
    ("bench {llama} {llama} --candidates", "TH0201", "two were named"),
    ("optimize {llama} --dynamic seq", "TH0201", "--dynamic"),
    ("optimize {llama} --dynamic seq=8:1", "TH0201", "is an empty range"),
    ("optimize {llama} --dynamic length=1:8", "TH0222", "which is not a size of an input"),
    ("optimize {llama} --target sm_1", "TH0201", "cannot compile kernels for this architecture"),
    ("optimize {llama} --train --target sm_90", "TH0201", "exclude each other"),
    ("optimize {llama} --task generate --seq 8", "TH0201", "exclude each other"),
    ("optimize {llama} --prompt-length 8", "TH0201", "is for generation"),
    ("optimize {llama} --metric accuracy", "TH0201", "without --eval"),
    ("optimize {llama} --eval {files}/none.jsonl", "TH0221", "does not exist"),
    ("optimize {llama} --sign-key {files}/none", "TH0220", "does not exist"),
    ("optimize {llama} --sign-key /dev/zero", "TH0220", "it is a device or a pipe"),
    ("optimize {llama} --config /dev/zero", "TH0203", "it is a device or a pipe"),
    ("optimize {llama} --config /dev/stdin", "TH0203", ""),
    ("optimize {llama} --trust-recipe", "TH0201", "not a folder with a thunder_recipe.py"),
    ("optimize {files}/nowhere", "TH0204", "there is no folder"),
    ("optimize ''", "TH0205", "has no config.json"),
    ("optimize /dev/null", "TH0204", "is a file, but a model is a folder"),
    ("optimize {artifact}", "TH0205", "an artifact of Thunder, not a model"),
    ("optimize {llama} --out {llama}", "TH0206", "was kept"),
    ("optimize {llama} --out {llama} --force", "TH0206", "was kept"),
    ("optimize {llama} --out /dev/null", "TH0206", ""),
    ("optimize {llama} --out /dev/null/inner", "TH0207", "cannot be written"),
    ("optimize {llama} --out /proc/inner", "TH0207", "cannot be written"),
    ("optimize {llama} --out {llama}/config.json/inner", "TH0207", "cannot be written"),
    (f"optimize {{llama}} --out {{here}}/{'x' * 300}", "TH0207", "cannot be written"),
    (f"optimize {{llama}} --out {{here}}/{NOT_TEXT}", "TH0201", "is not valid UTF-8"),
    (f"optimize {NOT_TEXT}", "TH0201", "is not valid UTF-8"),
    (f"verify {{here}}/{NOT_TEXT}", "TH0201", "is not valid UTF-8"),
    ("bench {llama} --baseline /dev/zero", "TH0201", "it is a device or a pipe"),
    ("bench {llama} --fail-above 5%", "TH0201", "without --baseline"),
    ("bench {llama} --fail-above lots --baseline /dev/null", "TH0201", "which is not a percentage"),
    ("bench {llama} --plot chart.txt", "TH0201", "has an unknown suffix"),
    ("bench {llama} --format xml", "TH0202", "there is no format called 'xml'"),
    ("bench {llama} --out {here}/none/a.json", "TH0207", "cannot be written"),
    ("bench {artifact} --recipe default", "TH0201", "needs a model"),
    ("validate {llama}", "TH0601", "has no manifest.json"),
    ("validate {files}/none", "TH0601", "there is no folder"),
    ("validate {artifact} --inputs 0", "TH0201", "--inputs is 0"),
    ("validate {artifact} --input {files}/none.npz", "TH0221", "does not exist"),
    ("debug {files}/none", "TH0204", ""),
    ("debug {artifact} --seq 8", "TH0201", "needs a model"),
    ("inspect-trace {files}/none", "TH0204", ""),
    ("inspect-trace {artifact} --stage bogus", "TH0212", "bogus"),
    ("inspect-trace {artifact} --program 9", "TH0212", "9"),
    ("run {artifact} --prompt hello", "TH0811", ""),
    ("run {llama} --prompt hello", "TH0601", "has no manifest.json"),
    ("verify {artifact} --require-signature", "TH0607", ""),
    ("verify {artifact} --key /dev/zero", "TH0220", "it is a device or a pipe"),
    ("sign {artifact} --key {files}/none", "TH0220", "does not exist"),
    ("keys trust /dev/zero", "TH0220", "it is a device or a pipe"),
    ("keys new {here}/none/key", "TH0207", "cannot be written"),
    ("explain TH9999", "TH0202", "there is no error code 'TH9999'"),
    ("explain ''", "TH0202", "there is no error code ''"),
    ("recipes show bogus", "TH0202", "there is no recipe called 'bogus'"),
    ("recipes new 'a b'", "TH0201", "is not a recipe name"),
    ("recipes new hf-llama3", "TH0201", "there is a recipe hf-llama3 already"),
    ("run nowhere", "TH0601", "nowhere"),
    ("optimize {llama} --recipe default --skip-layers auto --dry-run", "TH0201", "default does not"),
    ("optimize {llama} --recipe int8-weight-only --calibrate 3 --dry-run", "TH0201", "--calibrate has no effect"),
    ("recipes new ../x", "TH0201", "is not a recipe name"),
    ("cache prune --max-age soon", "TH0201", "which is not an age"),
    ("cache prune --max-size lots", "TH0201", "which is not a size"),
)


def in_json() -> Iterator[Accident]:
    """Repeat some of the rows with the error as JSON."""
    for number in range(0, len(COMMANDS), 6):
        command, code, says = COMMANDS[number]
        if command.split()[0] in ("optimize", "bench", "validate", "verify"):
            yield Accident(f"--json: {shown(command)}", f"{command} --json", code, says if "'" not in says else "")


def shown(command: str) -> str:
    """A command as the name of a row: printable and not too long."""
    return command.encode("ascii", "backslashreplace").decode()[:90]


def remove_folder(world: World) -> None:
    """Delete the working folder of the process."""
    Path.rmdir(world.here)


ARGUMENTS = (
    *(Accident(f"thunder {shown(command)}", command, code, says) for command, code, says in COMMANDS),
    *in_json(),
)
