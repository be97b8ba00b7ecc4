"""The help texts: sentences that begin with a verb or a noun phrase, are short, and use the terms of the field."""

from __future__ import annotations

import re
from collections.abc import Iterator

import typer

from thunder_cli.app import build_app

# Phrases that are hard to read, or words of our own for which PyTorch's users have a term.
BANNED = re.compile(
    r"\b(acquire[sd]?|beside|told|tells|is drawn|drawn|go on with|look after|so long|in whatever order|lies? in no|"
    r"without a word|that there are|of which|by which|no more|stands? for|which there|in place of|who (may|can|runs?)|"
    r"where it goes|one that|those that|what is|as it is)\b",
    re.IGNORECASE,
)
NO_BEGINNING = re.compile(r"(of|in|by|what|who|how|where|which|that|those|as|it|this|these|whose)\b", re.IGNORECASE)


def commands(command, name: str) -> Iterator[tuple[str, object]]:
    yield name, command
    for inner, found in getattr(command, "commands", {}).items():
        yield from commands(found, f"{name} {inner}")


APP = dict(commands(typer.main.get_command(build_app()), "thunder"))
HELPS = {
    **{name: command.help or "" for name, command in APP.items()},
    **{
        f"{name} {parameter.opts[0]}": parameter.help or ""
        for name, command in APP.items()
        for parameter in command.params
        if getattr(parameter, "help", None) is not None
    },
}


def sentences(help_text: str) -> list[str]:
    plain = re.sub(r"\[default: [^\]]*\]", "", help_text)
    return [part.strip() for part in re.split(r"(?<=[.;:])\s+(?=[A-Z`])|\n\n", plain) if part.strip()]


def test_every_command_and_every_option_has_a_help_text():
    assert len(APP) > 20
    assert [name for name, text in HELPS.items() if not text] == []
    assert all(
        getattr(option, "help", None) for command in APP.values() for option in command.params if option.name != "help"
    )


def test_a_help_text_begins_with_a_verb_or_a_noun():
    begun = {name: [part for part in sentences(text) if NO_BEGINNING.match(part)] for name, text in HELPS.items()}
    assert {name: parts for name, parts in begun.items() if parts} == {}


def test_sentences_are_short():
    long = {name: [part for part in sentences(text) if len(part.split()) > 20] for name, text in HELPS.items()}
    assert {name: parts for name, parts in long.items() if parts} == {}


def test_no_help_text_holds_an_odd_phrase():
    odd = {name: BANNED.findall(text) for name, text in HELPS.items()}
    assert {name: phrases for name, phrases in odd.items() if phrases} == {}


def test_the_name_of_an_argument_is_in_capitals():
    arguments = [
        (name, argument.metavar or argument.name)
        for name, command in APP.items()
        for argument in command.params
        if argument.param_type_name == "argument"
    ]
    assert arguments
    assert [(name, shown) for name, shown in arguments if shown != shown.upper() or "[" in shown] == []
