"""Settings from a file and from the command line have the same names and are checked in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from thunder_cli.options import SETTINGS
from thunder_cli.settings import Settings, parse_assignments, read_settings, settings_of
from thunder_core.foundation.errors import BadConfigFile, BadOption

EVERYTHING = """
model = "folder"
recipe = "hf-llama"
add-transform = ["cse"]
add-executor = "sdpa"
without = ["inductor:layers.3.mlp", "cse"]
compiler = "jit"
trust-recipe = true
out = "result"
sign-key = "~/key"
dtype = "bfloat16"
device = "cpu"
task = "causal-lm"
revision = "main"
batch = 2
seq = 64
cache = 8
prompt-length = 32
new-tokens = 16
height = 32
width = 48
runs = 10
threads = 1
warmup = 1
benchmark-budget = 20.0
validate-budget = 90.0
tune = "10s"
validate-inputs = 4
seed = 7
random-weights = true
trust-remote-code = false
force = true
strict = true
include-weights = true
train = true
target = "sm_90"
no-validate = true
no-benchmark = true
allow-non-finite = true
require-speedup = 1.25
input = "inputs.npz"
eval = "samples.jsonl"
metric = "accuracy"
calibrate = "16"
skip-layers = "auto"
force-slow = true
outputs = "tuple"
adapter = "merge"
allow-random-weights = ["classifier"]
allow-unused-weights = ["model.layers.3.*"]

search = "10m"
objective = "memory"
max-kl = 0.01
min-top1 = 0.99
max-error = 0.1
max-memory = "8GiB"
fresh = true
[set]
speed = "high"

[dynamic]
seq = "1:64"

[mesh]
shard = 2
"""


def written(tmp_path, text):
    path = tmp_path / "thunder.toml"
    path.write_text(text)
    return path


def test_a_file_may_hold_everything(tmp_path):
    settings = read_settings(written(tmp_path, EVERYTHING))
    assert settings.values.keys() == SETTINGS.keys()
    request = settings.request()
    assert (request.cache, request.height, request.width) == (8, 32, 48)
    assert (request.recipe, request.add_transform, request.add_executor) == (("hf-llama",), ("cse",), ("sdpa",))
    assert request.without == ("inductor:layers.3.mlp", "cse")
    assert (request.batch, request.seq, request.runs, request.warmup) == (2, 64, 10, 1)
    assert (request.model.model, request.model.dtype, request.model.seed) == ("folder", "bfloat16", 7)
    assert request.model.random_weights
    assert not request.model.trust_remote_code
    assert (request.force, request.strict, request.validate, request.benchmark) == (True, True, False, False)
    assert request.threads == 1
    assert request.mesh == {"shard": 2}
    assert (request.benchmark_budget, request.validate_budget, request.tune) == (20.0, 90.0, 10.0)
    assert request.inputs == 4
    assert request.include_weights
    assert request.trust_recipe
    assert request.train
    assert request.allow_non_finite
    assert request.require_speedup == 1.25
    assert (request.input, request.evaluate) == (Path("inputs.npz"), Path("samples.jsonl"))
    assert request.metric == "accuracy"
    assert (request.calibrate, request.skip_layers) == ("16", "auto")
    assert request.out == Path("result")
    assert request.sign_key == Path("~/key").expanduser()
    assert request.options == {"speed": "high"}
    assert request.dynamic == {"seq": (1, 64)}
    search = settings.search_request()
    assert (search.search, search.objective, search.fresh) == (600.0, "memory", True)
    assert (search.max_kl, search.min_top1, search.max_error, search.max_memory) == (0.01, 0.99, 0.1, 8 << 30)


def test_the_command_line_wins_and_options_are_merged_one_by_one(tmp_path):
    path = written(tmp_path, 'recipe = "hf-bert"\nbatch = 4\n[set]\nspeed = "low"\nsize = 3\n')
    merged = settings_of({"recipe": "default", "set": ["speed=high"]}).with_defaults(read_settings(path))
    assert (merged.get("recipe"), merged.get("batch"), merged.get("set")) == (
        "default",
        4,
        {"speed": "high", "size": 3},
    )


def test_former_name_of_a_setting_is_accepted(tmp_path):
    assert read_settings(written(tmp_path, "inputs = 7")).request().inputs == 7
    with pytest.raises(BadConfigFile, match="validate-inputs is given twice, once by its former name inputs"):
        read_settings(written(tmp_path, "inputs = 7\nvalidate-inputs = 7"))


@pytest.mark.parametrize("option", [("--inputs", "0"), ("--inputs=0",), ("--validate-inputs", "0")])
def test_former_name_of_an_option_is_accepted(thunder, option):
    assert "--validate-inputs is 0" in thunder("optimize", *option).err


def test_ranges_are_merged_one_by_one(tmp_path):
    path = written(tmp_path, '[dynamic]\nseq = "1:64"\nbatch = "1:2"\n')
    request = settings_of({"dynamic": ["seq = 2:8"]}).with_defaults(read_settings(path)).request()
    assert request.dynamic == {"seq": (2, 8), "batch": (1, 2)}
    with pytest.raises(BadOption, match="--dynamic gives seq twice"):
        settings_of({"dynamic": ["seq=1:2", "seq=1:3"]})
    with pytest.raises(BadOption, match="--dynamic 'seq' is not of the form name=a:b"):
        settings_of({"dynamic": ["seq"]})


def test_nothing_given_leaves_the_defaults():
    request = Settings().request()
    assert (request.recipe, request.batch, request.seq, request.out) == ("default", None, None, None)
    assert request.validate
    assert request.benchmark


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("recipee = 'x'", "no setting named 'recipee'", "did you mean recipe"),
        ("batch = 'many'", "batch is 'many'", "valid integer"),
        ("batch = 0", "batch is 0", "greater than or equal to 1"),
        ("seed = 12345678901234567890", "seed is 12345678901234567890", "less than or equal to 9223372036854775807"),
        ("dtype = 16", "dtype is 16", "valid string"),
        ("batch = ", "is not TOML", "correct the line"),
        ("[set.deep]\nkey = 1", "set is", "use a value that is"),
    ],
)
def test_faults_of_a_settings_file_are_reported(tmp_path, text, problem, remedy):
    with pytest.raises(BadConfigFile) as caught:
        read_settings(written(tmp_path, text))
    assert problem in caught.value.what
    assert "thunder.toml" in caught.value.what
    assert remedy in caught.value.fix


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadConfigFile, match="does not exist"):
        read_settings(tmp_path / "none.toml")


def test_a_file_that_is_not_text(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadConfigFile, match="not TOML"):
        read_settings(tmp_path / "binary.toml")


def test_assignments():
    assert parse_assignments(SETTINGS["set"], ["a=1", "b = x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for bad in ("a", "=1", " =1"):
        with pytest.raises(BadOption, match="key=value"):
            parse_assignments(SETTINGS["set"], [bad])


DEEP = "[" * 100_000
CHOKING = {
    "lists": f"batch = {DEEP}",
    "tables": "a = " + "{a = " * 100_000,
    "a dotted key": "a" + ".a" * 100_000 + " = 1",
    "a header": "[a" + ".a" * 50_000 + "]\nx = 1",
    "a number of many digits": f"seed = {'9' * 5001}",
    "a wrong hexadecimal number": f"recipe = 0x{'f' * 5001}",
    "an option of a recipe": "[set]\nspeed = " + "[" * 900 + "]" * 900,
    "no text": "\udcff",
    "a long key": "a" * 100_000 + " = 1",
}


@pytest.mark.parametrize("kind", CHOKING)
def test_files_that_break_the_toml_parser_are_refused(tmp_path, kind):
    path = tmp_path / "thunder.toml"
    path.write_text(CHOKING[kind], errors="surrogateescape")
    with pytest.raises(BadConfigFile) as refused:
        read_settings(path)
    assert refused.value.fix
    assert len(refused.value.what) < 1_000
