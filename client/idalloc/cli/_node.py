"""`idalloc node`, which shows the server process, and `idalloc node set`."""

from typing import Annotated

import typer

from idalloc.cli import _output
from idalloc.cli._options import Json, Server, Timeout, connect, integer_parser, set_group_options

app = typer.Typer()


@app.callback(invoke_without_command=True)
def node_group(context: typer.Context, server: Server = None, timeout: Timeout = None, as_json: Json = False) -> None:
    """Show the server process that answers: its version, its store and its settings for document ids."""
    if context.invoked_subcommand is not None:
        set_group_options(context, server, timeout)
        return
    with connect(context, server, timeout) as client:
        node = client.node()
    if as_json:
        _output.write_json(node.to_dict())
    else:
        _output.write_fields(node)


@app.command("set")
def set_(
    context: typer.Context,
    prefix: Annotated[
        int | None,
        typer.Option(metavar="N", parser=integer_parser(0, 65535), help="The prefix of its document ids, 0 to 65535."),
    ] = None,
    auto_increment_offset: Annotated[
        int | None,
        typer.Option(metavar="N", parser=integer_parser(1, 65535), help="MySQL's variable of that name, 1 to 65535."),
    ] = None,
    auto_increment_increment: Annotated[
        int | None,
        typer.Option(metavar="N", parser=integer_parser(1, 65535), help="MySQL's variable of that name, 1 to 65535."),
    ] = None,
    persist: Annotated[
        bool, typer.Option("--persist", metavar="", help="Keep the change over restarts, as MySQL's SET PERSIST.")
    ] = False,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Change the settings for document ids of the server that answers, at once and for all callers."""
    if prefix is None and auto_increment_offset is None and auto_increment_increment is None:
        raise typer.BadParameter("nothing to change; give at least one setting", context)
    with connect(context, server, timeout) as client:
        node = client.update_node(
            prefix=prefix,
            auto_increment_offset=auto_increment_offset,
            auto_increment_increment=auto_increment_increment,
            persist=persist,
        )
    if as_json:
        _output.write_json(node.to_dict())
    else:
        _output.write_fields(node)
