"""The commands `idalloc store export` and `store import`.

``context.obj`` is the printer of the command `idalloc`, which also adds the options `--output` and
`--json`.
"""

import json
import sys
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import typer

from idalloc_server.backup import counter_documents, export_file, exporter, importer
from idalloc_server.backup import repair as repairs
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import StartRefused, StoreFailure
from idalloc_server.domain.sequences.text import escaped
from idalloc_server.domain.store.identity import Opening
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.witness.marks import Witness
from idalloc_server.settings import commands
from idalloc_server.settings.commands import ConfigFile, fail, with_store, with_store_as_flags
from idalloc_server.store.credentials import has_secret
from idalloc_server.store.urls import open_index, open_store

# The most characters of --moved-to: it must fit into every error.
MAX_MOVED_TO_LENGTH = 300

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Export all sequences of a store, and import them.")


@app.command()
@with_store_as_flags
def export(
    *,
    retire: Annotated[
        bool,
        typer.Option(
            "--retire",
            help="Retire the store for a move to another one: delete all sequences, and wait until all leases expire. "
            "The retired store rejects new sequences, and servers do not start on it, until `store import --unretire`.",
        ),
    ] = False,
    moved_to: Annotated[
        str,
        typer.Option(
            "--moved-to",
            metavar="TEXT",
            help="With --retire: a text for rejected callers about the new store, without passwords or tokens. "
            f"Default: {exporter.DEFAULT_MOVED_TO}",
        ),
    ] = "",
    config_file: ConfigFile = None,
    **flags: str | None,
) -> None:
    """Export all sequences of a store, and the start timestamps of document ids, as JSON lines.

    Servers may run: no counter in the export is behind an id issued before it.
    """
    if moved_to:
        _check_moved_to(moved_to, retire=retire)

    async def run_export(store: Store, _: Witness | None) -> None:
        if not await store.list("", "", 1, with_deleted=True, with_periods=False) and not await store.claimed_starts():
            fail(f"there is nothing in {store.address} to export", 1)
        if retire:
            deleted = await exporter.retire(store, SystemClock(), moved_to)
            print(f"idalloc: deleted {deleted} sequences", file=sys.stderr)
        async for line in exporter.export_lines(store):
            print(line)
        sys.stdout.flush()

    with_store(run_export, config_file, flags, Opening(creates=False))


_Unretire = Annotated[
    bool,
    typer.Option(
        "--unretire",
        help="Reactivate a store that `store export --retire` retired. FILE must be the newest export of the store "
        "used since then; --new-store proves that.",
    ),
]
_NewStore = Annotated[
    str,
    typer.Option(
        "--new-store",
        metavar="URL",
        help="With --unretire: the store that served last. It must be retired, too, and FILE must be its export. That "
        "its sequences were moved on to a further store is not noticed.",
    ),
]
_NoIdsSinceExport = Annotated[
    bool,
    typer.Option(
        "--no-ids-since-export",
        help="With --unretire, if the store used since then cannot be reached: no server has issued an id since FILE "
        "was exported, and none will.",
    ),
]
_FromElasticsearch = Annotated[
    bool,
    typer.Option(
        "--from-elasticsearch",
        help="FILE has counter documents, as lines of _bulk or search hits, or is the URL of their index: "
        "opensearch://USER@HOST:9200/INDEX. Elasticsearch itself is not tested. Stop the old clients first, and block "
        "writes to the index.",
    ),
]
_ClientsStopped = Annotated[
    bool,
    typer.Option(
        "--clients-stopped",
        help="With --from-elasticsearch and a URL: import from an index that accepts writes, since none of its clients "
        "runs.",
    ),
]
_CounterField = Annotated[
    str,
    typer.Option(
        "--counter-field",
        metavar="NAME",
        help="With --from-elasticsearch: the field of the counter; by default the only one.",
    ),
]


@app.command("import")
@with_store_as_flags
def import_(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The output of `idalloc store export`; - for standard input.")
    ],
    *,
    unretire: _Unretire = False,
    new_store: _NewStore = "",
    no_ids_since_export: _NoIdsSinceExport = False,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Skip invalid lines, and import the valid ones. Calls on a skipped name are rejected until it is "
            "created with a start, advanced, or imported.",
        ),
    ] = False,
    from_elasticsearch: _FromElasticsearch = False,
    clients_stopped: _ClientsStopped = False,
    counter_field: _CounterField = "",
    config_file: ConfigFile = None,
    **flags: str | None,
) -> None:
    """Import exported sequences into a store. It never lowers a counter."""
    _check_unretire(new_store, unretire=unretire, no_ids_since_export=no_ids_since_export)
    if not from_elasticsearch and (counter_field or clients_stopped):
        fail(f"{'--counter-field' if counter_field else '--clients-stopped'} needs --from-elasticsearch", 2)
    lines = _read_documents(file, clients_stopped=clients_stopped) if from_elasticsearch else _read_lines(file)
    export_data = (
        counter_documents.read_lines(lines, counter_field) if from_elasticsearch else export_file.read_export(lines)
    )
    _print_problems(export_data.problems + export_data.notes)
    if export_data.problems and not partial:
        fail("nothing was imported; correct these lines, or skip them with --partial", 1)
    clock = SystemClock()
    importers = []

    async def run_import(store: Store, _: Witness | None) -> None:
        if new_store:
            await _check_new_store(store, new_store, lines, export_data)
        if unretire:
            await exporter.unretire(store, clock)
        importers.append(importer.Importer(store, clock))
        await importers[0].run(export_data)

    try:
        with_store(run_import, config_file, flags, Opening(name=export_data.store))
    finally:
        for each in importers:
            _print_problems(each.problems)
            _print_summary(context, each, clock.wall())
    if export_data.problems or importers[0].problems:
        raise typer.Exit(1)


@app.command()
@with_store_as_flags
def repair(context: typer.Context, *, config_file: ConfigFile = None, **flags: str | None) -> None:
    """Create lost tables or indices of a store again, and make all parts one store.

    Stop all servers of the store first. Names of lost sequences that the witness or the recorded
    answers know are reserved: calls are rejected until they are imported or created. Sequences that
    are behind a known id are advanced. Other ids and names stay unknown. So import the last
    export, and repair again, before a server starts.
    """
    done: list[repairs.Repaired] = []

    async def run_repair(store: Store, witness: Witness | None) -> None:
        done.extend(await repairs.repair(store, witness, SystemClock()))

    with_store(run_repair, config_file, flags, Opening(repairs=True))
    rows = [(each.sequence, each.period, str(each.last_id), each.state) for each in done]
    keys = ("sequence", "period", "lastId", "state")
    content = [{key: value for key, value in zip(keys, row, strict=True) if value} for row in rows]
    columns = ("sequence", "period", "last known id", "state")
    context.obj.rows(columns, rows, lambda: {"repaired": content}, numbers=columns[2:3])
    print(
        "idalloc: the store has all parts; import its last export, and repair again, before a server starts: lost "
        "sequences that are neither printed nor imported begin again",
        file=sys.stderr,
    )


def _check_unretire(new_store: str, *, unretire: bool, no_ids_since_export: bool) -> None:
    """End the command unless an option says, or proves, that no id was issued since the export."""
    if (new_store or no_ids_since_export) and not unretire:
        fail(f"{'--new-store' if new_store else '--no-ids-since-export'} needs --unretire", 2)
    if unretire and bool(new_store) == no_ids_since_export:
        fail(
            "--unretire needs --new-store URL, the store used since the retirement; if that cannot be reached, and no "
            "server has issued an id since FILE was exported, --no-ids-since-export says so",
            2,
        )
    if has_secret(new_store):
        fail("the URL of --new-store has a secret, which every user of this machine sees: use password_file", 2)


async def _check_new_store(store: Store, url: str, lines: list[bytes], file: export_file.ExportFile) -> None:
    new = open_store(url, SystemClock())
    commands.check_exists(new, "--new-store")
    try:
        await new.open(Opening(creates=False))
        await exporter.check_new_store(store, new, lines, file)
    finally:
        await new.close()


def _read_lines(file: str) -> list[bytes]:
    try:
        return (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).splitlines()
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}", 2)


def _read_documents(source: str, *, clients_stopped: bool) -> list[bytes]:
    """Return the lines of a file of counter documents, or those of the index that a URL names."""
    if "://" not in source:
        return _read_lines(source)
    if has_secret(source):
        fail("the URL of the index has a secret, which every user of this machine sees: use password_file", 2)

    async def read() -> list[bytes]:
        from idalloc_server.backup.counter_index import read_documents

        http, index = open_index(source)
        try:
            hits = await read_documents(http, index, clients_stopped=clients_stopped)
            return [json.dumps(hit).encode() for hit in hits]
        finally:
            await http.close()

    try:
        return commands.run(read())
    except StartRefused as error:
        fail(str(error).removeprefix("store: "), 2)
    except StoreFailure as error:
        fail(str(error), 1)


def _check_moved_to(text: str, *, retire: bool) -> None:
    if not retire:
        fail("--moved-to: requires --retire", 2)
    if not text.strip() or not text.isprintable() or len(text) > MAX_MOVED_TO_LENGTH:
        fail(f"--moved-to: must be one line of 1 to {MAX_MOVED_TO_LENGTH} characters", 2)
    if "://" in text and has_secret(text):
        fail("--moved-to: must not have a password or a token, since rejected callers read it", 2)


def _print_problems(problems: list[export_file.Problem]) -> None:
    for problem in problems:
        print(escaped(f"idalloc: line {problem.line}: {problem.message}"), file=sys.stderr)


def _print_summary(context: typer.Context, done: importer.Importer, now: float) -> None:
    lines = [
        f"created {done.created}, raised or changed {done.raised}, unchanged {done.unchanged}, "
        f"refused {len(done.problems)}; {done.claims} start timestamps"
    ]
    content: dict[str, Any] = {
        "created": done.created,
        "raisedOrChanged": done.raised,
        "unchanged": done.unchanged,
        "refused": len(done.problems),
        "startTimestamps": done.claims,
        "reserved": done.reserved,
    }
    if done.reserved:
        lines.append(
            f"reserved {done.reserved}: create these sequences with a start, or advance them, before their use"
        )
    if done.effective_at is not None:
        # Rounded up: it must not be too early.
        at = datetime.fromtimestamp(ceil(done.effective_at), UTC).isoformat()
        remaining = max(0, ceil(done.effective_at - now))
        lines.append(f"effective at {at}, in {remaining} s: until then nodes may issue ids of earlier leases")
        content["effectiveTime"] = at
    context.obj.lines(lines, lambda: content)
