"""`thunder cache`: lists, verifies, prunes and explains the compiled kernels that all processes share."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from thunder_cli.command_class import refuse_ignored_json
from thunder_cli.console import json_data, print_json, say, stdout
from thunder_cli.options import FLAG, Debug, Json
from thunder_core.foundation.printable import printable
from thunder_core.foundation.similar_names import did_you_mean

if TYPE_CHECKING:
    from thunder_core.backend.cache import Freed, Record, Store

cache = typer.Typer(help="Manage the cache of compiled kernels.", invoke_without_command=True)

DryRun = Annotated[
    bool, typer.Option("--dry-run", metavar=FLAG, help="Print what would be removed, and remove nothing.")
]


def complete_entry(incomplete: str) -> list[tuple[str, str]]:
    """Return the entries whose digests begin with a prefix, with their labels, for the shell's completion."""
    from thunder_core.backend.cache import Store

    return [
        (entry.digest[:12], printable(entry.label))
        for entry in Store().entries()
        if entry.digest.startswith(incomplete)
    ]


def complete_model(incomplete: str) -> list[str]:
    """Return the models of entries whose names begin with a prefix, for the shell's completion."""
    from thunder_core.backend.cache import Store

    names = {record.model for record in Store().entries() if record.model.startswith(incomplete)}
    return sorted(map(printable, names - {""}))


@cache.callback()
def choose(context: typer.Context, *, json: Json = False, debug: Debug = False) -> None:
    """Manage the cache of compiled kernels."""
    if context.invoked_subcommand is None:
        list_entries(json=json)
    else:
        refuse_ignored_json(context, json)


@cache.command("list")
def list_entries(
    *,
    by_model: Annotated[
        bool,
        typer.Option(
            "--by-model",
            metavar=FLAG,
            help="List the models that entries were built for, with the number and the total size of their entries.",
        ),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the entries of the cache with their sizes and ages, most recently used first."""
    from thunder_cli.views.cache import models_view, records_view
    from thunder_core.backend.cache import Store, by_models

    store = Store()
    records = store.entries()
    if json:
        total = sum(record.size for record in records)
        rows = (
            {"models": [json_data(record) for record in by_models(records)]}
            if by_model
            else {"entries": [json_data(record) for record in records]}
        )
        print_json("cache/1", {"folder": str(store.folder), "size": total, **rows})
        return
    if records:
        console = stdout()
        console.print(models_view(records) if by_model else records_view(records, width=console.width))
    print_summary(records, str(store.folder))


@cache.command()
def verify(*, json: Json = False, debug: Debug = False) -> None:
    """Check the digest of every file, and remove damaged entries; the exit status is 1 if an entry was damaged."""
    from thunder_cli.views.cache import count_entries, damage_view
    from thunder_core.backend.cache import Store
    from thunder_core.foundation.errors import CacheDamaged

    store = Store()
    records = store.verify()
    damaged = [record for record in records if record.damage]
    if damaged:
        if not json:
            stdout().print(damage_view(damaged))
        error = CacheDamaged(
            f"{len(damaged)} of {count_entries(len(records))} were damaged and have been removed",
            fix="nothing to do: Thunder builds these entries again when they are next needed",
        )
        error.rows = tuple(damaged)
        raise error
    if json:
        total = sum(record.size for record in records)
        print_json("cache-verify/1", {"folder": str(store.folder), "entries": len(records), "size": total})
    else:
        print_summary(records, str(store.folder), "all intact")


@cache.command()
def prune(
    *,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            metavar="SIZE",
            help="Largest size of the cache, such as 500M or 2GiB. The least recently used entries are removed.",
        ),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            metavar="AGE",
            help="Remove entries that were not used for at least this time, such as 12h, 30d or 2w.",
        ),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Remove entries that were not used for --max-age, and the least recently used entries beyond --max-size.

    At least one of these options is needed. Entries with an unreadable manifest are always removed; `thunder cache
    verify` finds other damage.
    """
    from thunder_core.backend.cache import Store
    from thunder_core.foundation.errors import BadOption
    from thunder_core.foundation.options.amount import age_of, bytes_of

    if max_size is None and max_age is None:
        raise BadOption(
            "neither --max-size nor --max-age was given",
            fix="set a limit, as in `thunder cache prune --max-size 2G`; `thunder cache clear` removes all entries",
        )
    max_bytes = None if max_size is None else bytes_of("--max-size", max_size)
    max_seconds = None if max_age is None else age_of("--max-age", max_age)
    show_freed(Store().prune(max_bytes=max_bytes, max_age=max_seconds, dry_run=dry_run), json=json, dry_run=dry_run)


@cache.command()
def clear(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Remove only the entries that were built for this model or function. `thunder cache list --by-model`"
            " lists the names. Other models that use these entries build them again.",
            autocompletion=complete_model,
        ),
    ] = None,
    searches: Annotated[
        bool,
        typer.Option(
            "--searches",
            metavar=FLAG,
            help="Remove the stored results of `thunder optimize --search` instead of compiled kernels.",
        ),
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Remove all entries, or the entries of one model.

    With `--searches`, remove the stored results of searches instead.
    """
    from thunder_core.backend.cache import Store
    from thunder_core.foundation.errors import BadOption

    if searches:
        if model is not None:
            raise BadOption("--searches was given with --model", fix="leave out --model: it selects compiled kernels")
        clear_searches(json=json, dry_run=dry_run)
        return
    store = Store()
    if model is not None:
        require_model(store, model)
    show_freed(store.clear(model=model, dry_run=dry_run), json=json, dry_run=dry_run)


def require_model(store: Store, model: str) -> None:
    """Raise `UnknownName` if the cache has no entry that was built for a model."""
    from thunder_core.foundation.errors import UnknownName

    models = {record.model for record in store.entries() if record.model}
    if model not in models:
        raise UnknownName(
            f"the cache has no entry that was built for {model!r}",
            fix=f"{did_you_mean(model, models)}`thunder cache list --by-model` lists the models",
        )


def clear_searches(*, json: bool, dry_run: bool) -> None:
    """Remove the stored results of searches, and print how many there were."""
    from thunder_cli.views.quantity import count_noun, format_bytes
    from thunder_core.workflow.recipe_search.stored_searches import count_stored_searches, remove_searches

    stored_searches = count_stored_searches() if dry_run else remove_searches()
    if json:
        print_json("cache-searches/1", {"dry_run": dry_run, **asdict(stored_searches)})
        return
    verb = "would remove" if dry_run else "removed"
    searches = count_noun(stored_searches.searches, "search", "searches")
    say(f"{verb} {count_noun(stored_searches.trials, 'result')} of {searches}, {format_bytes(stored_searches.size)}")


@cache.command()
def key(*, json: Json = False, debug: Debug = False) -> None:
    """Print the key under which continuous integration can store the cache of compiled kernels.

    The key changes with the versions of Thunder, PyTorch, Triton, Python and the compiler, and with the processor.
    """
    from thunder_cli.cache_key import cache_key

    if json:
        print_json("cache-key/1", {"key": cache_key()})
    else:
        say(cache_key())


@cache.command()
def why(
    entry: Annotated[
        str | None,
        typer.Argument(
            metavar="ENTRY",
            help="First digits of the entry's digest, or its label; `thunder cache list` shows both. The"
            " latest entry with a label is explained. Default: the entry that was built last.",
            autocompletion=complete_entry,
        ),
    ] = None,
    *,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Explain a cache miss: why an entry had to be built.

    The command shows how the entry's key differs from the key of the most similar earlier entry.
    """
    from thunder_cli.views.cache import why_view
    from thunder_core.backend.cache import Key, Store

    store = Store()
    record = find_entry(store.entries(), entry)
    explanation = store.why(Key(record.executor, record.fields))
    if json:
        print_json("cache-why/1", {"why": json_data(explanation)})
    else:
        stdout().print(why_view(explanation))


def find_entry(records: list[Record], label_or_digest: str | None) -> Record:
    """Return the entry with a digest prefix or a label, the latest for a label; raise `UnknownName` or `BadOption`."""
    from thunder_core.foundation.errors import BadOption, UnknownName

    intact = sorted((record for record in records if not record.damage), key=lambda record: record.created)
    matching = [record for record in intact if label_or_digest is None or record.label == label_or_digest][-1:]
    matching = matching or [record for record in intact if record.digest.startswith((label_or_digest or "").lower())]
    if len(matching) == 1:
        return matching[0]
    if matching:
        digests = ", ".join(record.digest[:12] for record in matching[:4]) + (", ..." if len(matching) > 4 else "")
        raise BadOption(
            f"the digests of {len(matching)} entries begin with {label_or_digest!r}",
            fix=f"write more digits: {digests}",
        )
    hint = did_you_mean(label_or_digest or "", {record.label for record in intact})
    what = "the cache has no entry" if label_or_digest is None else f"the cache has no entry named {label_or_digest!r}"
    raise UnknownName(what, fix=f"{hint}`thunder cache list` lists the entries")


def show_freed(freed: Freed, *, json: bool, dry_run: bool) -> None:
    """Print the removed and the remaining entries."""
    from thunder_cli.views.cache import freed_text, records_view

    if json:
        counts = {
            "freed": {"entries": len(freed.removed), "size": freed.size},
            "kept": {"entries": len(freed.kept), "size": freed.kept_size},
        }
        removed = [json_data(record) for record in freed.removed]
        print_json("cache-freed/1", {"dry_run": dry_run, **counts, "removed": removed})
        return
    if dry_run and freed.removed:
        console = stdout()
        console.print(records_view(freed.removed, width=console.width))
    stdout().print(freed_text(freed, dry_run=dry_run))


def print_summary(records: list[Record], folder: str, verdict: str = "") -> None:
    """Print the number of entries, their size and the folder, without wrapping, so that the path can be copied."""
    from rich.text import Text

    from thunder_cli.views.cache import count_entries
    from thunder_cli.views.quantity import format_bytes

    if not records:
        stdout().print(Text.assemble(("no entries in ", "dim"), folder), soft_wrap=True)
        return
    total = f"{count_entries(len(records))}, {format_bytes(sum(record.size for record in records))}"
    checked = Text(f", {verdict}", "green") if verdict else Text()
    stdout().print(Text.assemble((total, "bold"), checked, (" in ", "dim"), folder), soft_wrap=True)
