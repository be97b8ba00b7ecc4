"""`thunder run`: generates text from a prompt with an artifact, and prints the text as it is computed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from thunder_cli import options
from thunder_cli.console import print_json, results, say, stderr
from thunder_cli.library_output import quiet_libraries
from thunder_cli.option_groups import expand_options
from thunder_cli.settings import Settings
from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.pipeline.request.run_request import PROMPT_FIX, RunRequest, check_run_request

MAX_CHARACTERS = 1 << 24  # of a prompt on stdin

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline.generation.artifact_generation import Generator, Token, WeightTraffic


@expand_options
def run(
    artifact: options.Artifact,
    *,
    request: RunRequest,
    settings: Annotated[Settings, ("trust-remote-code",)],
    trust: options.TrustOptions,
    json: options.Json = False,
    quiet: Annotated[
        bool, options.quiet_option("Do not print progress, nor the last line with the number of tokens and the speed.")
    ] = False,
    allow_untested_torch: options.AllowUntestedTorch = False,
    debug: options.Debug = False,
) -> None:
    """Generate text from a prompt with ARTIFACT, streaming the output.

    Decoding is greedy by default; any sampling option turns on sampling. The tokenizer and its chat template come
    from the folder of the model that ARTIFACT was made from. Nothing is traced or compiled. Make ARTIFACT with
    `thunder optimize --task generate`, or with `--dynamic cache=0:N`.
    """
    with quiet_libraries(debug=debug):
        from thunder_cli.import_notice import importing_tested_torch
        from thunder_core.workflow.artifact.format.read import read_manifest

        check_run_request(request)
        read_manifest(artifact.expanduser())
        prompt = request.prompt_ids or request.prompt or prompt_of_stdin()
        console = stderr(quiet=quiet)
        with importing_tested_torch(console):
            from thunder_core.workflow.pipeline.generation.artifact_generation import open_generator
        consent = trust.consent(trust_remote_code=bool(settings.get("trust-remote-code")))
        generator = open_generator(artifact.expanduser(), consent)
        prompt_ids, output = generate_output(generator, prompt, request, is_printed=not json)
        traffic = generator.weight_traffic()
        if json:
            print_json("run/1", {"artifact": str(artifact), **run_data(len(prompt_ids), output, request, traffic)})
        else:
            console.print(summary(output.tokens, traffic), style="dim", soft_wrap=True)


def generate_output(
    generator: Generator, prompt: str | Sequence[int], request: RunRequest, *, is_printed: bool
) -> tuple[list[int], GeneratedOutput]:
    """Generate tokens after a prompt, given as text or as token ids; return the prompt's token ids and the output."""
    from thunder_core.workflow.models.inputs.tokens import prompt_tokens

    tokenizer = generator.tokenizer() if isinstance(prompt, str) else None
    prompt_ids = prompt_tokens(tokenizer, prompt) if isinstance(prompt, str) else list(prompt)
    count = generator.new_tokens(prompt_ids, request.new_tokens)
    output = GeneratedOutput(tokenizer, is_printed=is_printed)
    with output.end_line():
        generator.generate(prompt_ids, count, request.sampling, output.add)
    return prompt_ids, output


def run_data(
    prompt_length: int, output: GeneratedOutput, request: RunRequest, traffic: WeightTraffic | None
) -> dict[str, object]:
    """Return the generated text and tokens, the sampling and the memory traffic, for the JSON document."""
    return {
        "prompt_tokens": prompt_length,
        "text": output.text,
        "memory": None if traffic is None else traffic._asdict(),
        "sampling": asdict(request.sampling) if request.sampling.samples else None,
        **token_data(output.tokens),
    }


def prompt_of_stdin() -> str:
    """Return the prompt that was piped into the command; raise `BadOption` if there is none, or if it is not UTF-8."""
    try:
        prompt = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read(MAX_CHARACTERS + 1).rstrip("\n")
        prompt.encode()  # some locales accept bytes that are not text
    except UnicodeError as error:
        raise BadOption(
            "the prompt on stdin is not UTF-8 text", fix="convert the prompt with `iconv -t utf-8`"
        ) from error
    if not prompt.strip():
        raise BadOption("there is no prompt", fix=PROMPT_FIX)
    if len(prompt) > MAX_CHARACTERS:
        raise BadOption(f"the prompt on stdin has more than {MAX_CHARACTERS} characters", fix="pass a shorter prompt")
    return prompt


class GeneratedOutput:
    """The generated tokens and their text. If `is_printed` is set, each piece of the text is printed when it is added.

    Without a tokenizer, `text` is None, and the ids of the tokens are printed.
    """

    def __init__(self, tokenizer: Any, *, is_printed: bool) -> None:
        from thunder_core.workflow.pipeline.generation.artifact_generation import TextPieces

        self.tokens: list[Token] = []
        self.is_printed = is_printed
        self._pieces = TextPieces(tokenizer) if tokenizer else None
        self._text: list[str] = []

    @property
    def text(self) -> str | None:
        """The complete text; None without a tokenizer."""
        return "".join(self._text) if self._pieces else None

    def add(self, token: Token) -> None:
        """Add a token, and print the text that this token completes."""
        self.tokens.append(token)
        separated_id = f"{',' if len(self.tokens) > 1 else ''}{token.id}"
        self._print(self._pieces.after(token) if self._pieces else separated_id)

    @contextmanager
    def end_line(self) -> Iterator[None]:
        """After the block, print the rest of the text; then print a newline, even after Ctrl-C."""
        try:
            yield
            if self._pieces:
                self._print(self._pieces.rest())
        finally:
            if self.is_printed and self._text:
                say("")

    def _print(self, piece: str) -> None:
        if not piece:
            return
        self._text.append(piece)
        if self.is_printed:
            say(piece, end="")
            results().flush()


def token_data(tokens: Sequence[Token]) -> dict[str, object]:
    """Return the ids of the tokens and their times, for the JSON document."""
    return {
        "tokens": [token.id for token in tokens],
        "ended": tokens[-1].ends,
        "seconds_to_first_token": tokens[0].seconds,
        "seconds_of_each_token": [token.seconds for token in tokens],
        "tokens_per_second": rate(tokens),
    }


def rate(tokens: Sequence[Token]) -> float | None:
    """Return the tokens per second after the first token; None if there is only one token."""
    rest = [token.seconds for token in tokens[1:]]
    return len(rest) / sum(rest) if rest else None


def summary(tokens: Sequence[Token], traffic: WeightTraffic | None = None) -> str:
    """Return the line after the text: the number of tokens, the time of the first token, and the rate of the others.

    With `traffic`, the bytes of weights read per second are compared with the memory bandwidth. Each token reads all
    weights once, so memory bandwidth limits the rate.
    """
    counted = "1 token" if len(tokens) == 1 else f"{len(tokens)} tokens"
    per_second = rate(tokens)
    rest = "" if per_second is None else f", then {per_second:,.1f} tokens/s"
    if per_second is not None and traffic is not None:
        read, bandwidth = per_second * traffic.weights / 2**30, traffic.bandwidth / 2**30
        rest += f" ({read:.1f} GiB/s of weights; memory bandwidth {bandwidth:.1f} GiB/s)"
    return f"{counted}: first after {tokens[0].seconds:.2f} s{rest}"
