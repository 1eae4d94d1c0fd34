"""`idalloc verify`. It needs the extra `idalloc[verify]`."""

from pathlib import Path
from typing import Annotated

import typer

from idalloc.cli._options import with_output
from idalloc.cli._printer import failure


@with_output
def verify(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="Logs of issued ids (--log); optionally also the output of `idalloc store export`, and logs of nodes.",
        ),
    ],
) -> None:
    """Prove from clients' logs that no id was issued twice, and that all are in order.

    There may be any number of logs, all of one store. The command recognizes each file by its
    content. With an export that was made after the logs, it also checks that no id is past the
    exported counter, and counts missing ids. Node logs give their causes; the others are
    unattributed. The exit code is 0 only if there is no finding.

    Memory stays below a gigabyte for logs of any size: the rest goes to the temporary folder
    (TMPDIR), at most 40 bytes for each record.
    """
    try:
        from idalloc.verify import _logs, _verdict
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "numpy":
            raise
        raise failure("idalloc verify needs the package numpy: pip install 'idalloc[verify]'", 2) from error
    try:
        verdict = _verdict.verify(files)
    except _logs.InvalidFile as error:
        raise failure(f"idalloc: {error}", 2) from error
    context.obj.lines(_verdict.to_text(verdict).splitlines(), lambda: _verdict.to_json(verdict))
    if verdict.findings.any:
        raise typer.Exit(1)
