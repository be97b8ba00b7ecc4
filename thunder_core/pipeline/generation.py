"""Going on with a prompt, token by token, by the programs of an artifact alone: nothing is traced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from thunder_core.artifact.consent import NO_CONSENT, Consent
from thunder_core.artifact.loading import load_opened
from thunder_core.artifact.manifest import Manifest
from thunder_core.artifact.read import Artifact, open_artifact
from thunder_core.artifact.signature import require_authentic
from thunder_core.errors import BadOption, CannotGenerate, SequenceTooLong
from thunder_core.models.load import LoadedModel
from thunder_core.models.origin import find_origin, request_of
from thunder_core.models.tokens import tokenizer_beside
from thunder_core.pipeline.rebuild import loaded_from
from thunder_core.pipeline.run_request import PROMPT_FIX

USUAL_NEW_TOKENS = 128

MAKE_ANEW = (
    "make it anew by `thunder optimize MODEL --dynamic cache=0:N --dynamic seq=1:M`: texts of N tokens, prompts read M "
    "tokens at a time"
)


@dataclass(frozen=True)
class ServedLengths:
    """The lengths that an artifact's programs serve: tokens of a call, and tokens that are cached before it."""

    tokens: int
    cached: int

    def new_tokens(self, prompt: int) -> int:
        """The greatest number of tokens that may follow a prompt of so many; 0 where the prompt itself is too long."""
        behind_prompt = self.cached - prompt + 2  # the last token is returned and never read
        last_read = (prompt - 1) // self.tokens * self.tokens
        return max(behind_prompt, 1) if last_read <= self.cached else 0


def served_lengths(folder: Path, manifest: Manifest) -> ServedLengths:
    """The lengths that an artifact serves; raises `CannotGenerate` where its programs go on with no text."""
    ranges = {name: (size, size) for name, size in manifest.drawn.items()} | dict(manifest.dynamic)
    if manifest.train or "cache" not in ranges:
        kind = "a step of training" if manifest.train else "calls without a cache of keys and values"
        raise CannotGenerate(f"{folder} holds programs for {kind}: they go on with no text", fix=MAKE_ANEW)
    for name, needed in (("cache", 0), ("seq", 1), ("batch", 1)):
        lower, upper = ranges.get(name, (1, 1))
        if not lower <= needed <= upper:
            raise CannotGenerate(
                f"{folder} serves {name} from {lower} to {upper}, and going on with a text needs {needed}",
                fix=MAKE_ANEW,
            )
    return ServedLengths(tokens=ranges.get("seq", (1, 1))[1], cached=ranges["cache"][1])


@dataclass(frozen=True)
class Token:
    """One token that follows, the seconds that it took, and whether the text ends with it."""

    id: int
    seconds: float
    ends: bool


@dataclass(frozen=True, eq=False)
class Generator:
    """An artifact that goes on with texts; of the tokens that may follow it always takes the likeliest."""

    artifact: Artifact
    loaded: LoadedModel
    compiled: torch.nn.Module
    lengths: ServedLengths
    trust_remote_code: bool = False

    def tokenizer(self) -> Any:
        """The tokenizer that lies beside the model; raises `BadData` where there is none."""
        origin = find_origin(request_of(self.artifact.manifest.source))
        return tokenizer_beside(
            origin,
            "a prompt is a text",
            fix="give the prompt as tokens (--prompt-ids 1,2,3), or put the model's tokenizer.json into its folder",
            trust_remote_code=self.trust_remote_code,
        )

    def new_tokens(self, prompt: Sequence[int], asked: int | None) -> int:
        """The number of tokens that may follow a prompt; raises `BadOption` and `SequenceTooLong`."""
        vocabulary = self.loaded.config.get_text_config().vocab_size
        if not prompt:
            raise BadOption("the prompt has no tokens", fix=PROMPT_FIX)
        if max(prompt) >= vocabulary:
            raise BadOption(
                f"the prompt holds token {max(prompt)}", fix=f"the model's tokens are 0 to {vocabulary - 1}: give these"
            )
        most = self.lengths.new_tokens(len(prompt))
        if most < (asked or 1):
            raise SequenceTooLong(
                f"a prompt of {len(prompt)} tokens and {asked or 1} that follow are more than {self.artifact.folder} "
                f"serves, whose cache holds {self.lengths.cached}",
                fix=f"ask for {most} new tokens or fewer (--new-tokens), or {MAKE_ANEW}"
                if most
                else f"shorten the prompt, or {MAKE_ANEW}",
            )
        return asked or min(most, USUAL_NEW_TOKENS)

    def tokens(self, prompt: Sequence[int], count: int) -> Iterator[Token]:
        """The tokens that follow, as they are computed: `count`, or up to the one that ends the text."""
        cache = DynamicCache(config=self.loaded.config.get_text_config(decoder=True))
        ends, began, unread = ends_of(self.loaded), time.perf_counter(), list(prompt)
        for _ in range(count):
            following = self._following(unread, cache)
            now = time.perf_counter()
            yield Token(following, now - began, following in ends)
            if following in ends:
                return
            began, unread = time.perf_counter(), [following]

    def _following(self, unread: list[int], cache: DynamicCache) -> int:
        """The likeliest token behind those that the cache holds and those that are yet to be read."""
        for start in range(0, len(unread), self.lengths.tokens):
            ids = torch.tensor([unread[start : start + self.lengths.tokens]], device=self.loaded.model.device)
            mask = ids.new_ones(1, cache.get_seq_length() + ids.shape[1])
            with torch.no_grad():
                logits = self.compiled(input_ids=ids, attention_mask=mask, past_key_values=cache).logits
        return int(logits[0, -1].argmax())


def ends_of(loaded: LoadedModel) -> frozenset[int]:
    """The tokens that end a text, by the model's own settings of generation."""
    settings = loaded.model.generation_config
    end = None if settings is None else settings.eos_token_id
    return frozenset(() if end is None else [end] if isinstance(end, int) else end)


def open_generator(folder: Path, consent: Consent = NO_CONSENT) -> Generator:
    """An artifact that goes on with texts.

    Raises what `load` raises, and `CannotGenerate` where the artifact has no programs for it. Nothing is traced: calls
    that no program takes raise `WrongInputs`.
    """
    artifact = open_artifact(folder)
    require_authentic(artifact, consent)
    lengths = served_lengths(folder, artifact.manifest)
    loaded = loaded_from(artifact, trust_remote_code=consent.trust_remote_code)
    compiled = load_opened(artifact, loaded.model, consent, strict=True)
    return Generator(artifact, loaded, compiled, lengths, consent.trust_remote_code)


def text_pieces(tokens: Iterator[Token], tokenizer: Any, heard: Callable[[Token], object]) -> Iterator[str]:
    """The text of tokens in pieces, as soon as whole characters are there; `heard` is told of each token."""
    ids: list[int] = []
    told = ""
    for token in tokens:
        heard(token)
        ids.append(token.id)
        text = tokenizer.decode(ids, skip_special_tokens=True)
        if text.startswith(told) and not text.endswith("\ufffd"):
            yield text[len(told) :]
            told = text
    yield tokenizer.decode(ids, skip_special_tokens=True)[len(told) :]
