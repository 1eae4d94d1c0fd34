"""`idalloc node`: the settings of the server process that answers."""

from functools import partial
from typing import Annotated, Any

import typer

from idalloc.cli._connection import connect
from idalloc.cli._fields import fields
from idalloc.cli._options import add_group_options, add_options, integer_parser, with_options
from idalloc.cli._usage import UsageError

app = add_group_options(
    typer.Typer(no_args_is_help=True, help="Show and change the settings of the node that answers.")
)


def _number(minimum: int, help: str) -> Any:
    return Annotated[int | None, typer.Option(metavar="N", parser=integer_parser(minimum, 65535), help=help)]


SETTINGS = {
    "prefix": _number(0, "The prefix of the node's document ids, 0 to 65535."),
    "auto_increment_offset": _number(1, "MySQL's variable of that name, 1 to 65535."),
    "auto_increment_increment": _number(1, "MySQL's variable of that name, 1 to 65535."),
}


@app.command()
@with_options
def show(context: typer.Context) -> None:
    """Show the node's version, its store and its settings for document ids."""
    with connect(context) as client:
        node = client.node()
    context.obj.record(fields(node), node.to_dict)


@app.command("set")
@with_options
@partial(add_options, options=SETTINGS)
def set_(
    context: typer.Context,
    persist: Annotated[
        bool, typer.Option("--persist", metavar="", help="Keep the change across restarts, like MySQL's SET PERSIST.")
    ] = False,
    **settings: int | None,
) -> None:
    """Change the node's settings for document ids, at once and for all callers."""
    if set(settings.values()) == {None}:
        raise UsageError("nothing to change; give at least one setting", context)
    with connect(context) as client:
        node = client.update_node(persist=persist, **settings)
    context.obj.record(fields(node), node.to_dict)
