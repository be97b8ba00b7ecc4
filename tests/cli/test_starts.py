"""Fast starts: errors in names, sizes and paths are refused before PyTorch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

import thunder_core as thunder

HEAVY = ("torch", "transformers", "numpy", "matplotlib", "scipy", "jinja2")
# Every command runs in turn in one process. None of them may import a heavy module.
PROBE = f"""
import contextlib, io, json, sys
from thunder_cli.main import main
told = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    heavy = sorted(set(sys.modules) & {set(HEAVY)!r})
    told.append({{"status": status, "out": out.getvalue(), "err": err.getvalue(), "heavy": heavy}})
print(json.dumps(told))
"""
REFUSED = {
    "optimize --batch 0": (2, "TH0201", "--batch is 0"),
    "optimize --seq 0": (2, "TH0201", "--seq is 0"),
    "optimize --runs 1": (2, "TH0201", "--runs is 1"),
    "optimize --seed -1": (2, "TH0201", "--seed is -1"),
    "optimize --batch many": (2, "TH0201", "--batch"),
    "optimize --recip default": (2, "TH0201", "--recipe"),
    "optimize --recipe hf-lama": (2, "TH0202", "did you mean hf-llama"),
    "optimize --dtype bfloat61": (2, "TH0202", "did you mean bfloat16"),
    "optimize --device cdua": (2, "TH0202", "'cdua'"),
    "optimize --task casual-lm": (2, "TH0202", "did you mean causal-lm"),
    "optimize --target sm_91": (2, "TH0201", "'sm_91'"),
    "optimize --target sm_90 --train": (2, "TH0201", "exclude each other"),
    "optimize --set x": (2, "TH0201", "key=value"),
    "optimize --set unknown=1": (2, "TH0202", "recipe default has no option 'unknown'"),
    "optimize --recipe hf-llama3-hopper --set x=1": (2, "TH0202", "recipe hf-llama3-hopper has no option 'x'"),
    "bench --set unknown=1": (2, "TH0202", "recipe default has no option 'unknown'"),
    "inspect-trace --set unknown=1": (2, "TH0202", "recipe default has no option 'unknown'"),
    "optimize --config none.toml": (2, "TH0203", "none.toml"),
    "optimize --config wrong.toml": (2, "TH0203", "did you mean recipe"),
    "optimize --out taken": (2, "TH0206", "is not an artifact and was kept"),
    "optimize --out wrong.toml/inside": (2, "TH0207", "is a file"),
    "optimize wrong.toml": (2, "TH0204", "is a file"),
    "optimize empty": (2, "TH0205", "has no config.json"),
    "optimize bad": (2, "TH0205", "is not JSON"),
    "optimize bare": (2, "TH0205", "has no weights"),
    "optimize acme/bare": (2, "TH0204", "acme/bare is incomplete in the local cache"),
    "optimize acme/shards": (2, "TH0204", "it lacks two.safetensors"),
    "optimize nobody/here": (2, "TH0204", "'nobody/here'"),
    "optimize no//thing": (2, "TH0204", "'no//thing'"),
    "bench --against torch": (2, "TH0202", "contender"),
    "bench --batch 1,x": (2, "TH0201", "not a list of numbers"),
    "bench --batch 0": (2, "TH0201", "--batch is 0"),
    "bench --runs 1": (2, "TH0201", "--runs is 1"),
    "bench --recipe hf-lama": (2, "TH0202", "did you mean hf-llama"),
    "bench --fail-above 5%": (2, "TH0201", "--baseline"),
    "bench --plot x.txt": (2, "TH0201", "x.txt"),
    "bench --baseline none.json": (2, "TH0201", "none.json"),
    "validate empty": (6, "TH0601", "manifest.json"),
    "validate empty --validate-inputs 0": (2, "TH0201", "--validate-inputs is 0"),
    "inspect-trace --dtype bfloat61": (2, "TH0202", "did you mean bfloat16"),
    "inspect-trace --recipe hf-lama": (2, "TH0202", "did you mean hf-llama"),
    "inspect-trace --diff 0 1 --stage 2": (2, "TH0201", "--diff compares whole stages"),
    "executors inductr": (2, "TH0202", "did you mean inductor"),
    "executors --of empty": (6, "TH0601", "manifest.json"),
    "recipes show hf-lama": (2, "TH0202", "did you mean hf-llama"),
    "explain TH999": (2, "TH0202", "TH999"),
    "cache prune": (2, "TH0201", "--max-size"),
    "cache why nothing": (2, "TH0202", "nothing"),
}

# Commands that read an artifact and print its contents, with words of their output.
READS = {
    "inspect-trace read --list": (0, "computation"),
    "inspect-trace read": (0, "def computation"),
    "inspect-trace read --json": (0, "lines"),
    "inspect-trace read --plain": (0, "import torch"),
    "inspect-trace read --diff 0 1": (0, "the two stages are the same"),
    "inspect-trace read --grep gelu": (0, "gelu"),
    "inspect-trace read --stage none": (2, "TH0212"),
    "executors --of read": (2, "has no report"),
    "optimize --out read": (2, "exists and was kept"),
    "bench read --against torch": (2, "contender"),
    "bench read --dtype float32": (2, "--dtype needs a model, but read is an artifact"),
    "validate read --validate-inputs 0": (2, "--validate-inputs is 0"),
}


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """The output of each command of `READS` for a small artifact."""
    here = tmp_path_factory.mktemp("reads")
    (here / "cache").mkdir()
    compiled = thunder.jit(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()))
    compiled(torch.ones(2, 4))
    thunder.save(compiled, here / "read")
    return run_all(READS, here)


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """The output of each command of `REFUSED`, run in one process."""
    here = tmp_path_factory.mktemp("here")
    for name in ("taken", "empty", "bad", "bare", "cache"):
        (here / name).mkdir()
    (here / "taken" / "mine.txt").write_text("kept")
    (here / "wrong.toml").write_text('recip = "default"\n')
    (here / "bad" / "config.json").write_text("{")
    (here / "bare" / "config.json").write_text("{}")
    cached(here, "bare")
    cached(here, "shards").joinpath("one.safetensors").touch()
    index = cached(here, "shards") / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}')
    return run_all(REFUSED, here)


def cached(home: Path, name: str) -> Path:
    """The snapshot of a hub model in the cache of a home folder. A new snapshot contains the config alone."""
    model = home / ".cache" / "huggingface" / "hub" / f"models--acme--{name}"
    snapshot = model / "snapshots" / ("0" * 40)
    for folder in (model / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (model / "refs" / "main").write_text(snapshot.name)
    (snapshot / "config.json").write_text("{}")
    return snapshot


def run_all(commands: object, here: Path) -> dict[str, dict[str, object]]:
    """Run the commands in this folder, all in one new process, and return the output of each."""
    lines = [str(command) for command in commands]  # type: ignore[attr-defined]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "HF_HUB_OFFLINE": "1", "HOME": str(here)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps([line.split() for line in lines]),
        capture_output=True,
        text=True,
        check=True,
        cwd=here,
        env=environment | {"THUNDER_CACHE_DIR": str(here / "cache"), "COLUMNS": "200"},
    )
    return dict(zip(lines, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("command", REFUSED)
def test_wrong_names_and_sizes_are_refused_before_pytorch_is_imported(refused, command):
    status, code, words = REFUSED[command]
    result = refused[command]
    assert (result["status"], result["out"]) == (status, ""), result
    assert code in result["err"]
    assert words in result["err"]
    assert result["heavy"] == []


@pytest.mark.parametrize("command", READS)
def test_reading_an_artifact_needs_no_pytorch(read, command):
    status, words = READS[command]
    result = read[command]
    assert result["status"] == status, result
    assert words in f"{result['out']}{result['err']}"
    assert result["heavy"] == []


def test_damaged_weights_are_refused_before_pytorch(tmp_path):
    for name in ("cache", "damaged"):
        (tmp_path / name).mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{}")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"too short to be weights")
    (result,) = run_all(["optimize damaged"], tmp_path).values()
    assert result["status"] == 2
    assert "TH0205" in result["err"]
    assert not {"torch", "transformers"} & set(result["heavy"])


# A command in a process that records the output so far when a module is imported.
WATCHING = """
import contextlib, io, json, sys
from thunder_cli.main import main
out, err, seen = io.StringIO(), io.StringIO(), {}
WATCHED = {"torch", "transformers.modeling_utils", "torch._dynamo", "torch._inductor", "scipy.optimize"}
class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in WATCHED and name not in seen:
            seen[name] = out.getvalue() + err.getvalue()
sys.meta_path.insert(0, Watch)
with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    status = main(sys.argv[1:])
print(json.dumps({"status": status, "out": out.getvalue(), "err": err.getvalue(), "seen": seen}))
"""


def watched(folder: Path, *options: str) -> dict[str, object]:
    """The output of the optimization of a model, and the output so far when each watched module was imported."""
    command = [sys.executable, "-c", WATCHING, "optimize", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    """A small BERT with its weights."""
    folder = tmp_path_factory.mktemp("models") / "bert"
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    BertModel(BertConfig(**sizes, vocab_size=64)).save_pretrained(folder)
    return folder


def test_a_dry_run_imports_nothing_of_the_models_code(bert):
    result = watched(bert, "--dry-run")
    assert result["status"] == 0, result
    assert result["seen"].keys() == {"torch"}
    assert result["out"].count("bert (BertModel)") == 1
    assert "memory" in result["out"]


def test_the_model_is_shown_before_pytorch_is_imported(bert):
    result = watched(bert, "--dynamic", "seq=1:9999999")
    assert result["status"] == 2, result
    assert "bert (BertModel)" in result["seen"]["torch"]
    assert result["err"].count("bert (BertModel)") == 1
    assert result["out"] == ""


def test_the_plan_is_shown_before_the_code_of_the_model_is_imported(bert):
    result = watched(
        bert, "--dry-run", "--dtype", "bfloat16"
    )  # the weights would be converted, so their sizes in the files do not suffice
    shown = result["seen"]["transformers.modeling_utils"]
    assert "executors" in shown
    assert "artifact" in shown
    assert "memory" not in shown
    assert "memory" in result["out"].removeprefix(shown)


def test_a_plan_as_json_has_no_other_rows(bert):
    result = watched(bert, "--dry-run", "--json")
    assert json.loads(result["out"])["model"].endswith("bert")


def test_the_compiler_is_imported_without_dynamo():
    probe = "import sys, thunder_core; thunder_core.jit; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", probe], check=True)
