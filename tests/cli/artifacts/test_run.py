"""`thunder run`: tokens and text compared with eager `generate`, prompts on stdin, refusals, and Ctrl-C."""

from __future__ import annotations

import io
import math
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.cli.small import save_small_model
from thunder_cli.commands.run import summary
from thunder_core.backend.runtime.prologues import uninterrupted
from thunder_core.backend.runtime.prologues.stored_prologue import StoredPrologue
from thunder_core.frontend.acquire.codegen import prologue
from thunder_core.passes.recipe import Recipe
from thunder_core.tracing.library.changes.memory_words import CAN_WATCH
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import optimize
from thunder_core.workflow.pipeline.generation import artifact_generation as generation
from thunder_core.workflow.pipeline.generation.artifact_generation import (
    ServedLengths,
    Token,
    TokenListener,
    WeightTraffic,
)
from thunder_core.workflow.pipeline.request.request import Request

REPORTED = r"then ([\d.,]+) tokens/s \(([\d.]+) GiB/s of weights; memory bandwidth ([\d.]+) GiB/s\)"
PROMPT = "w1 w2 w3 w4 w5 w6"
TEMPLATE = "{% for turn in messages %}w7 {{ turn.content }}{% endfor %}"


class Eager(Recipe):
    """A recipe that compiles nothing."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small Llama with a tokenizer in its folder, and artifacts of the Llama that generate text.

    Programs store the statements that later tokens may skip, however few there are.
    """
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prologue, "MIN_SKIPPED_STATEMENTS", 1)
        make(folder)
    return folder


def make(folder):
    save_small_model(folder / "model")
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(512)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder / "model")
    request = {"recipe": Eager, "model": ModelRequest(model=str(folder / "model")), "benchmark": False}
    optimize(Request(out=folder / "artifact", dynamic={"cache": (0, 20), "seq": (1, 4)}, inputs=1, **request))
    optimize(Request(out=folder / "calls", seq=8, validate=False, **request))
    generating = {**request, "model": ModelRequest(model=str(folder / "model"), task="generate")}
    optimize(Request(out=folder / "generating", prompt_length=6, new_tokens=9, batch=1, validate=False, **generating))


def continued(folder, prompt, count):
    """The tokens of eager PyTorch."""
    model = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", ["artifact", "generating"])
def test_tokens_and_text_match_eager_generate(thunder, made, monkeypatch, kind):
    expected = continued(made, [1, 2, 3, 4, 5, 6], 9)
    run = ("run", made / kind, "--new-tokens", 9)
    monkeypatch.setattr(
        "thunder_core.compilation.compiler.compiler.acquire", lambda *_, **__: pytest.fail("it was traced")
    )
    text = thunder(*run, "--prompt", PROMPT)
    assert (text.status, text.out) == (0, " ".join(f"w{token}" for token in expected) + "\n"), text.err
    assert "tokens: first after" in text.err
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT + "\n"))
    assert thunder(*run, "--quiet").out == text.out
    assert thunder(*run, "--prompt-ids", "1,2,3,4,5,6").out == ",".join(map(str, expected)) + "\n"
    found = thunder(*run, "--prompt", PROMPT, "--json").json
    assert (found["schema"], found["tokens"], found["prompt_tokens"]) == ("thunder.run/1", expected, 6)
    assert found["text"] + "\n" == text.out
    assert found["seconds_to_first_token"] == found["seconds_of_each_token"][0] > 0
    assert found["tokens_per_second"] == pytest.approx(8 / sum(found["seconds_of_each_token"][1:]))


@pytest.mark.skipif(not CAN_WATCH, reason="the versions of dicts are not known in this Python")
@pytest.mark.parametrize("kind", ["artifact", "generating"])
def test_the_guards_on_the_model_are_checked_once_for_each_program(thunder, made, monkeypatch, kind):
    """With a method of the user in place of Thunder's, each token checks all guards."""
    check, checked = StoredPrologue.check_all_guards, []
    monkeypatch.setattr(
        StoredPrologue, "check_all_guards", lambda self, *args: (checked.append(self), check(self, *args))[1]
    )

    monkeypatch.setattr(uninterrupted, "has_usual_stdout", lambda: True)  # it is pytest's
    run = ("run", made / kind, "--prompt-ids", "1,2,3,4,5,6", "--new-tokens", 9)
    expected = ",".join(map(str, continued(made, [1, 2, 3, 4, 5, 6], 9))) + "\n"
    assert thunder(*run).out == expected
    assert 0 < len(checked) <= 6  # both parts of the prompt and the first token, by programs that accept or refuse them
    checked.clear()
    put = TokenListener.put
    monkeypatch.setattr(TokenListener, "put", lambda *args: put(*args))
    assert thunder(*run).out == expected
    assert not checked


def test_rate_of_a_large_model_is_compared_with_the_memory_bandwidth(thunder, made, monkeypatch):
    run = ("run", made / "generating", "--new-tokens", 9, "--prompt", PROMPT)
    assert thunder(*run, "--json").json["memory"] is None
    assert "memory bandwidth" not in thunder(*run).err
    monkeypatch.setattr(generation, "LARGE_WEIGHT_BYTES", 0)
    found = thunder(*run, "--json").json
    weights = AutoModelForCausalLM.from_pretrained(made / "model")
    held = {id(tensor): tensor.nbytes for tensor in (*weights.parameters(), *weights.buffers())}
    assert found["memory"]["weights"] == sum(held.values())
    assert 1e8 < found["memory"]["bandwidth"] < 1e13
    words = thunder(*run).err
    rate, read, most = (float(number.replace(",", "")) for number in re.search(REPORTED, words).groups())
    assert read == pytest.approx(rate * sum(held.values()) / 2**30, abs=0.06)
    assert most > 0.1


@pytest.mark.parametrize(
    ("seconds", "traffic", "words"),
    [
        ([0.5], WeightTraffic(2**30, 2**34), "1 token: first after 0.50 s"),
        ([0.5, 0.25, 0.25], None, "3 tokens: first after 0.50 s, then 4.0 tokens/s"),
        (
            [1.0, 0.5, 0.5],
            WeightTraffic(3 * 2**30, 12.5 * 2**30),
            "3 tokens: first after 1.00 s, then 2.0 tokens/s (6.0 GiB/s of weights; memory bandwidth 12.5 GiB/s)",
        ),
    ],
)
def test_rate_in_words(seconds, traffic, words):
    assert summary([Token(1, duration, False) for duration in seconds], traffic) == words


def test_sampled_tokens_match_eager_generate(thunder, made):
    options = {"temperature": 0.7, "top_k": 40, "top_p": 0.8}
    model = AutoModelForCausalLM.from_pretrained(made / "model").eval()
    ids = torch.tensor([[1, 2, 3]])
    torch.manual_seed(11)
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=True, **options)
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    for kind in ("artifact", "generating"):
        found = thunder("run", made / kind, "--prompt-ids=1,2,3", "--new-tokens=8", "--seed=11", *given, "--json").json
        assert found["tokens"] == expected[0, 3:].tolist(), kind
        assert found["sampling"] == {**options, "seed": 11}
    again = [thunder("run", made / kind, "--prompt-ids=1,2,3", "--top-k=400", "--json").json for _ in range(2)]
    assert again[0]["sampling"]["seed"] != again[1]["sampling"]["seed"]
    assert again[0]["tokens"] != again[1]["tokens"]


def test_prompts_outside_of_the_lengths_of_generation_are_refused(thunder, made):
    for options, words in (
        (("--prompt-ids", "1,2,3,4,5,6,7"), "shorten the prompt"),
        (("--prompt-ids", "1,2,3", "--new-tokens", 13), "use at most 12 new tokens"),
    ):
        done = thunder("run", made / "generating", *options)
        assert (done.status, done.out) == (2, "")
        assert "prompts of up to 6 tokens, and 15 tokens in total" in " ".join(done.err.split())
        assert words in done.err
    assert thunder("run", made / "generating", "--prompt-ids", "1,2,3", "--new-tokens", 12).status == 0


def test_a_template_for_chats_is_used(thunder, made):
    template = made / "model" / "chat_template.jinja"
    template.write_text(TEMPLATE)
    try:
        found = thunder("run", made / "artifact", "--prompt", "w1 w2", "--new-tokens", 3, "--json").json
    finally:
        template.unlink()
    assert found["tokens"] == continued(made, [7, 1, 2], 3)


REFUSED = {
    "empty": (("--prompt", " "), 2, "the prompt is empty"),
    "both": (("--prompt", "w1", "--prompt-ids", "1"), 2, "exclude each other"),
    "no numbers": (("--prompt-ids", "1,x"), 2, "--prompt-ids is '1,x'"),
    "no token of the model": (("--prompt-ids", "9999"), 2, "token 9999"),
    "none": (("--prompt-ids", "1", "--new-tokens", 0), 2, "--new-tokens is 0"),
    "cold": (("--prompt-ids", "1", "--temperature", 0), 2, "--temperature is 0"),
    "no share": (("--prompt-ids", "1", "--top-p", 1.5), 2, "--top-p is 1.5"),
    "no choice": (("--prompt-ids", "1", "--top-k", 0), 2, "--top-k is 0"),
    "prompt too long": (("--prompt-ids", ",".join("1" * 26)), 2, "TH0209"),
    "too many tokens": (("--prompt-ids", "1", "--new-tokens", 22), 2, "use at most 21 new tokens"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_prompts_that_cannot_be_are_refused(thunder, made, kind):
    options, status, words = REFUSED[kind]
    done = thunder("run", made / "artifact", *options)
    assert (done.status, done.out) == (status, "")
    assert words in done.err
    assert "Traceback" not in done.err


def test_missing_prompt_tokenizer_or_programs_are_refused_with_advice(thunder, made, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "there is no prompt" in thunder("run", made / "artifact").err
    monkeypatch.setattr("thunder_core.workflow.models.inputs.tokens.TOKENIZERS", ())
    assert "--prompt-ids 1,2,3" in thunder("run", made / "artifact", "--prompt", "w1").err
    done = thunder("run", made / "calls", "--prompt-ids", "1")
    assert (done.status, "TH0811" in done.err, "--task generate" in done.err) == (8, True, True)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_prompt_on_stdin_that_is_no_text_is_refused(thunder, made, monkeypatch, errors):
    stdin = io.TextIOWrapper(io.BytesIO(b"w1 \xff"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", stdin)
    done = thunder("run", made / "artifact")
    assert (done.status, "not UTF-8 text" in done.err) == (2, True)


def test_a_prompt_on_stdin_that_is_too_long_is_refused(thunder, made, monkeypatch):
    monkeypatch.setattr("thunder_cli.commands.run.MAX_CHARACTERS", 9)
    monkeypatch.setattr("sys.stdin", io.StringIO("w1 w2 w3 w4"))
    done = thunder("run", made / "artifact")
    assert (done.status, "more than 9 characters" in done.err) == (2, True)


@pytest.fixture
def not_finite_weights(made):
    """The weights of the last norm are NaN while a test runs."""
    file = made / "model" / "model.safetensors"
    before = file.read_bytes()
    weights = load_file(file)
    save_file({**weights, "model.norm.weight": weights["model.norm.weight"] * math.nan}, file, {"format": "pt"})
    yield
    file.write_bytes(before)


@pytest.mark.parametrize("kind", ["artifact", "generating"])
@pytest.mark.parametrize("options", [("--seed", 1), ("--temperature", 2), ("--top-k", 3), ("--top-p", 0.5)])
@pytest.mark.usefixtures("not_finite_weights")
def test_sampling_from_logits_that_are_not_finite_is_refused(thunder, made, kind, options):
    done = thunder("run", made / kind, "--prompt-ids", "1,2", *options)
    assert done.status == 4, done.err
    assert "error TH0403 the model's logits are NaN or infinite" in done.err
    assert "thunder debug" in done.err


@pytest.mark.parametrize("kind", ["artifact", "generating"])
def test_the_least_temperature_samples_the_greedy_tokens(thunder, made, kind):
    done = thunder("run", made / kind, "--prompt-ids", "1,2,3,4,5,6", "--temperature", 1e-6, "--new-tokens", 9)
    assert (done.status, done.out) == (0, ",".join(map(str, continued(made, [1, 2, 3, 4, 5, 6], 9))) + "\n"), done.err


@pytest.mark.parametrize("kind", ["artifact", "generating"])
def test_ctrl_c_ends_generation_with_the_text_so_far(thunder, made, monkeypatch, kind):
    put = TokenListener.put

    def interrupted(self, value):
        if self.had_prompt and len(heard) == 1:
            raise KeyboardInterrupt
        heard.extend([value] if self.had_prompt else [])
        put(self, value)

    heard = []
    monkeypatch.setattr(TokenListener, "put", interrupted)
    done = thunder("run", made / kind, "--prompt-ids", "1,2")
    assert (done.status, done.out) == (130, f"{continued(made, [1, 2], 1)[0]}\n")
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("prompt", "most"), [(1, 21), (20, 2), (22, 1), (24, 1), (25, 0)])
def test_the_last_token_is_never_read(prompt, most):
    assert ServedLengths(tokens=4, cached=20).new_tokens(prompt) == most
