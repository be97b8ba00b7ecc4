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

MAX_PROMPT = 1 << 24  # characters that are read from stdin

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline.generation.artifact_generation import Token, WeightReading


@expand_options
def run(
    artifact: options.Artifact,
    *,
    request: RunRequest,
    settings: Annotated[Settings, ("trust-remote-code",)],
    trust: options.TrustOptions,
    json: options.Json = False,
    quiet: options.Quiet = False,
    allow_untested_torch: options.AllowUntestedTorch = False,
    debug: options.Debug = False,
) -> None:
    """Generate text from a prompt with ARTIFACT, streaming the output.

    Decoding is greedy by default; any sampling option turns on sampling. The tokenizer and its chat template come
    from the model's folder. Nothing is traced or compiled. Make ARTIFACT with `thunder optimize --task generate`, or
    with `--dynamic cache=0:N`.
    """
    with quiet_libraries(debug=debug):
        from thunder_cli.import_notice import importing_tested
        from thunder_core.workflow.artifact.format.read import read_manifest

        check_run_request(request)
        read_manifest(artifact.expanduser())
        given = request.prompt_ids or request.prompt or prompt_of_stdin()
        console = stderr(quiet=quiet)
        with importing_tested(console):
            from thunder_core.workflow.models.inputs.tokens import prompt_tokens
            from thunder_core.workflow.pipeline.generation.artifact_generation import open_generator
        consent = trust.consent(trust_remote_code=bool(settings.get("trust-remote-code")))
        generator = open_generator(artifact.expanduser(), consent)
        tokenizer = generator.tokenizer() if isinstance(given, str) else None
        prompt = prompt_tokens(tokenizer, given) if isinstance(given, str) else list(given)
        count = generator.new_tokens(prompt, request.new_tokens)
        sampling = request.sampling
        told_tokens = ToldTokens(tokenizer, shown=not json)
        with told_tokens.line():
            generator.generate(prompt, count, sampling, told_tokens.hear)
        tokens = told_tokens.tokens
        reading = generator.reading()
        if json:
            data = {"artifact": str(artifact), "prompt_tokens": len(prompt), "text": told_tokens.text}
            data["memory"] = None if reading is None else reading._asdict()
            print_json("run/1", {**data, "sampling": asdict(sampling) if sampling.draws else None, **timings(tokens)})
        else:
            console.print(in_words(tokens, reading), style="dim", soft_wrap=True)


def prompt_of_stdin() -> str:
    """Return the prompt that was piped into the command; raise `BadOption` if there is none, or if it is not UTF-8."""
    try:
        prompt = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read(MAX_PROMPT + 1).rstrip("\n")
        prompt.encode()  # some locales accept bytes that are not text
    except UnicodeError as error:
        raise BadOption(
            "the prompt on stdin is not UTF-8 text", fix="convert the prompt with `iconv -t utf-8`"
        ) from error
    if not prompt.strip():
        raise BadOption("there is no prompt", fix=PROMPT_FIX)
    if len(prompt) > MAX_PROMPT:
        raise BadOption(f"the prompt on stdin has more than {MAX_PROMPT} characters", fix="pass a shorter prompt")
    return prompt


class ToldTokens:
    """The generated tokens and their text, or their numbers without a tokenizer; printed if `shown` is set."""

    def __init__(self, tokenizer: Any, *, shown: bool) -> None:
        """Collect the tokens; without a tokenizer, `text` is None."""
        from thunder_core.workflow.pipeline.generation.artifact_generation import TextPieces

        self.tokens: list[Token] = []
        self.shown = shown
        self._pieces = TextPieces(tokenizer) if tokenizer else None
        self._text: list[str] = []

    @property
    def text(self) -> str | None:
        """The complete text; None without a tokenizer."""
        return "".join(self._text) if self._pieces else None

    def hear(self, token: Token) -> None:
        """Add a token, and print the text that it adds."""
        self.tokens.append(token)
        number = f"{',' if len(self.tokens) > 1 else ''}{token.id}"
        self._tell(self._pieces.after(token) if self._pieces else number)

    @contextmanager
    def line(self) -> Iterator[None]:
        """Print tokens while the block runs, then end the line, also after Ctrl-C."""
        try:
            yield
            if self._pieces:
                self._tell(self._pieces.rest())
        finally:
            if self.shown and self._text:
                say("")

    def _tell(self, piece: str) -> None:
        if not piece:
            return
        self._text.append(piece)
        if self.shown:
            say(piece, end="")
            results().flush()


def timings(tokens: Sequence[Token]) -> dict[str, object]:
    """Return the tokens and their times as plain data."""
    return {
        "tokens": [token.id for token in tokens],
        "ended": tokens[-1].ends,
        "seconds_to_first_token": tokens[0].seconds,
        "seconds_of_each_token": [token.seconds for token in tokens],
        "tokens_per_second": rate(tokens),
    }


def rate(tokens: Sequence[Token]) -> float | None:
    """Return the tokens per second after the first token; None if there is only one."""
    rest = [token.seconds for token in tokens[1:]]
    return len(rest) / sum(rest) if rest else None


def in_words(tokens: Sequence[Token], reading: WeightReading | None = None) -> str:
    """Return the summary after the text: the number of tokens, their rate, and the memory bandwidth that they used.

    Each token reads all weights once, so memory bandwidth limits the rate.
    """
    counted = "1 token" if len(tokens) == 1 else f"{len(tokens)} tokens"
    each = rate(tokens)
    then = "" if each is None else f", then {each:,.1f} tokens/s"
    if each is not None and reading is not None:
        read, most = each * reading.weights / 2**30, reading.bandwidth / 2**30
        then += f" ({read:.1f} GiB/s of weights; memory bandwidth {most:.1f} GiB/s)"
    return f"{counted}: first after {tokens[0].seconds:.2f} s{then}"
