"""`idalloc verify`, which needs a package that the other verbs do not."""

from pathlib import Path
from typing import Annotated

import typer

from idalloc.cli import _output


def verify(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="Logs of issued ids (--log), and what helps: `idalloc export` of the store, logs of nodes.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print the report as JSON.")] = False,
) -> None:
    """Prove from the logs of any number of clients that no id was issued twice, and all in order.

    What each file is, its content tells. With an export, made after the logs, no id may lie beyond what it says. Ids
    that no log has are listed by cause where a node's log tells of them, else as unattributed. Logs are to be of one
    store. The exit code is 0 only if nothing was found that must not be.

    However large logs are, memory stays below a gigabyte: what does not fit goes to the folder for temporary files
    (which TMPDIR names), with at most 40 bytes for each record.
    """
    try:
        from idalloc.verify import _logs, _verdict
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "numpy":
            raise
        _output.say("idalloc verify needs the package numpy: pip install 'idalloc[verify]'")
        raise typer.Exit(2) from error
    try:
        verdict = _verdict.verify(files)
    except _logs.NoLog as error:
        _output.say(f"idalloc: {error}")
        raise typer.Exit(2) from error
    _output.write_report(_output.to_json(_verdict.to_json(verdict)) if as_json else _verdict.to_text(verdict))
    if verdict.findings.any:
        raise typer.Exit(1)
