"""`thunder run`: an artifact goes on with a prompt, and the text appears as it is computed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from thunder_cli import options
from thunder_cli.console import print_json, say, stderr
from thunder_cli.library_output import quiet_libraries
from thunder_cli.option_groups import expand_options
from thunder_cli.settings import Settings
from thunder_core.errors import BadOption
from thunder_core.pipeline.run_request import PROMPT_FIX, RunRequest, check_run_request

if TYPE_CHECKING:
    from thunder_core.pipeline.generation import Generator, Token


@expand_options
def run(
    artifact: options.Artifact,
    *,
    request: RunRequest,
    settings: Annotated[Settings, ("trust-remote-code",)],
    trust: options.TrustOptions,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Go on with a prompt by the programs of ARTIFACT, and print the text as it is computed.

    Of the tokens that may follow the likeliest is taken. The tokenizer is the one in the model's folder, with its
    template for chats where there is one. Nothing is traced or compiled: ARTIFACT has to be made for it, with
    `--dynamic cache=0:N` and, for prompts that are read M tokens at a time, `--dynamic seq=1:M`.
    """
    with quiet_libraries(debug=debug):
        from thunder_cli.import_notice import importing
        from thunder_core.artifact.read import read_manifest

        check_run_request(request)
        given = request.prompt_ids or request.prompt or prompt_of_stdin()
        read_manifest(artifact.expanduser())
        told = stderr(quiet=quiet)
        with importing(told):
            from thunder_core.models.tokens import prompt_tokens
            from thunder_core.pipeline.generation import open_generator
        consent = trust.consent(trust_remote_code=bool(settings.get("trust-remote-code")))
        generator = open_generator(artifact.expanduser(), consent)
        tokenizer = generator.tokenizer() if isinstance(given, str) else None
        prompt = prompt_tokens(tokenizer, given) if isinstance(given, str) else list(given)
        count = generator.new_tokens(prompt, request.new_tokens)
        tokens, text = generated(generator, prompt, count, tokenizer, shown=not json)
        if json:
            found = {"artifact": str(artifact), "prompt_tokens": len(prompt), "text": text}
            print_json("run/1", found | timings(tokens))
        else:
            told.print(in_words(tokens), style="dim", soft_wrap=True)


def prompt_of_stdin() -> str:
    """The prompt that was piped into the command; raises `BadOption` where there is none or it is no text."""
    try:
        prompt = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read().rstrip("\n")
        prompt.encode()  # some locales let bytes through that are no text
    except UnicodeError as error:
        raise BadOption("the prompt on stdin is no text in UTF-8", fix="convert it: `iconv -t utf-8`") from error
    if not prompt.strip():
        raise BadOption("there is no prompt", fix=PROMPT_FIX)
    return prompt


def generated(
    generator: Generator, prompt: Sequence[int], count: int, tokenizer: Any, *, shown: bool
) -> tuple[list[Token], str | None]:
    """The tokens that follow a prompt and, where there is a tokenizer, their text; printed as they come if `shown`."""
    from thunder_core.pipeline.generation import text_pieces

    tokens: list[Token] = []
    coming = generator.tokens(prompt, count)
    pieces = text_pieces(coming, tokenizer, tokens.append) if tokenizer else numbers(coming, tokens)
    text = []
    try:
        for piece in pieces:
            text.append(piece)
            if shown:
                say(piece, end="")
                sys.stdout.flush()
    finally:
        if shown and text:  # also where Ctrl-C ends it
            say("")
    return tokens, "".join(text) if tokenizer else None


def numbers(coming: Iterator[Token], tokens: list[Token]) -> Iterator[str]:
    """The tokens that come as numbers with commas between them; each is noted."""
    for token in coming:
        tokens.append(token)
        yield f"{',' if len(tokens) > 1 else ''}{token.id}"


def timings(tokens: Sequence[Token]) -> dict[str, object]:
    """The tokens and what each took, as plain data."""
    return {
        "tokens": [token.id for token in tokens],
        "ended": tokens[-1].ends,
        "seconds_to_first_token": tokens[0].seconds,
        "seconds_of_each_token": [token.seconds for token in tokens],
        "tokens_per_second": rate(tokens),
    }


def rate(tokens: Sequence[Token]) -> float | None:
    """The tokens per second behind the first one; None where no other followed."""
    rest = [token.seconds for token in tokens[1:]]
    return len(rest) / sum(rest) if rest else None


def in_words(tokens: Sequence[Token]) -> str:
    """The line behind the text: how many tokens there are, and how fast they came."""
    counted = "1 token" if len(tokens) == 1 else f"{len(tokens)} tokens"
    then = "" if (each := rate(tokens)) is None else f", then {each:,.1f} tokens/s"
    return f"{counted}: the first after {tokens[0].seconds:.2f} s{then}"
