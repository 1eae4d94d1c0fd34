"""`idalloc node`, which shows, and `idalloc node set`."""

from typing import Annotated

import typer

from idalloc.cli import _output
from idalloc.cli._options import Json, Server, Timeout, connect, remember_for_group, whole_number

app = typer.Typer()


@app.callback(invoke_without_command=True)
def node(context: typer.Context, server: Server = None, timeout: Timeout = None, as_json: Json = False) -> None:
    """Show the server process that answers: its version, its store, and what its document ids are made of."""
    if context.invoked_subcommand is not None:
        remember_for_group(context, server, timeout)
        return
    with connect(context, server, timeout) as client:
        found = client.node()
    if as_json:
        _output.write_json(found)
    else:
        _output.write_fields(found)


@app.command("set")
def set_(
    context: typer.Context,
    prefix: Annotated[
        int | None,
        typer.Option(metavar="N", parser=whole_number(0, 65535), help="The prefix of its document ids, 0 to 65535."),
    ] = None,
    auto_increment_offset: Annotated[
        int | None,
        typer.Option(metavar="N", parser=whole_number(1, 65535), help="MySQL's variable of that name, 1 to 65535."),
    ] = None,
    auto_increment_increment: Annotated[
        int | None,
        typer.Option(metavar="N", parser=whole_number(1, 65535), help="MySQL's variable of that name, 1 to 65535."),
    ] = None,
    persist: Annotated[
        bool, typer.Option("--persist", metavar="", help="Keep it over restarts, as MySQL's SET PERSIST.")
    ] = False,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Change what the document ids of the server process that answers are made of, at once and for all callers."""
    if prefix is None and auto_increment_offset is None and auto_increment_increment is None:
        raise typer.BadParameter("nothing to change", context)
    with connect(context, server, timeout) as client:
        changed = client.update_node(
            prefix=prefix,
            auto_increment_offset=auto_increment_offset,
            auto_increment_increment=auto_increment_increment,
            persist=persist,
        )
    if as_json:
        _output.write_json(changed)
    else:
        _output.write_fields(changed)
