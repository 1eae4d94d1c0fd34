"""`idalloc node`: the settings of the server process that answers."""

from typing import Annotated

import typer

from idalloc.cli._connection import connect
from idalloc.cli._fields import fields
from idalloc.cli._options import integer_parser, with_options
from idalloc.cli._usage import UsageError

app = typer.Typer(no_args_is_help=True)


@app.callback()
@with_options
def node(context: typer.Context) -> None:
    """Show and change the server process that answers."""


@app.command()
@with_options
def show(context: typer.Context) -> None:
    """Show its version, its store and its settings for document ids."""
    with connect(context) as client:
        node = client.node()
    context.obj.record(fields(node), node.to_dict)


@app.command("set")
@with_options
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
) -> None:
    """Change its settings for document ids, at once and for all callers."""
    if prefix is None and auto_increment_offset is None and auto_increment_increment is None:
        raise UsageError("nothing to change; give at least one setting", context)
    with connect(context) as client:
        node = client.update_node(
            prefix=prefix,
            auto_increment_offset=auto_increment_offset,
            auto_increment_increment=auto_increment_increment,
            persist=persist,
        )
    context.obj.record(fields(node), node.to_dict)
