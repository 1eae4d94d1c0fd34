"""The command `idalloc`: the client's commands, and those of other packages.

Other packages register commands by the entry point `idalloc.commands`.
"""

import os
import sys
from collections.abc import Sequence

import typer

# Set before gRPC is imported: its core logs errors that the command reports itself, or retries.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from idalloc.cli import _bench, _connection, _health, _ids, _node, _protos, _sequences, _verify
from idalloc.cli._commands import convert_without_pydantic, join_lines
from idalloc.cli._plugins import CommandGroup
from idalloc.cli._printer import write_stderr
from idalloc.cli._usage import UsageError, explain

# The next step if the server is unreachable: for each kind of TLS error, and otherwise.
_UNREACHABLE_HINTS = {
    "expired": "renew it on the server",
    "untrusted": "pass the certificate of its CA with --ca",
    "name": "pass a name in its certificate with --server-name",
    "plaintext": "omit --tls, --ca and --cert",
    "closed": "pass --tls or --ca, or --cert and --key",
    None: "start a server with `idalloc serve`, pass another address with --server, or, if it uses TLS, --tls or --ca "
    "(and --cert and --key)",
}

app = typer.Typer(
    cls=CommandGroup,
    callback=_connection.root,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("allocate")(_ids.allocate)
app.command("stream")(_ids.stream)
app.command("docid")(_ids.docid)
app.command("uuid")(_ids.uuids)
app.add_typer(_sequences.app, name="sequences")
app.add_typer(_node.app, name="node")
app.command("bench")(_bench.bench)
app.command("verify")(_verify.verify)
app.command("protos")(_protos.protos)
app.command("health")(_health.health)


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line, by default the process's own.

    Returns:
        The exit code: 0 on success, 2 for a usage error, 130 after Ctrl-C, 1 for any other failure.
    """
    try:
        command = join_lines(convert_without_pydantic(typer.main.get_command(app)))
        code = command(args, prog_name="idalloc", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe, as `| head` does. At exit Python would flush stdout and fail.
        sys.stdout = sys.stderr
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        return _report(error, sys.argv[1:] if args is None else args)
    return code if isinstance(code, int) else 0


def _report(error: Exception, args: Sequence[str]) -> int:
    """Print an error as one line on standard error, and return the exit code."""
    from idalloc import IdallocError, QuotaExceeded, ServerUnreachable, Unauthenticated  # late: for errors alone

    if isinstance(error, UnicodeEncodeError) or isinstance(error.__cause__, UnicodeEncodeError):
        return _fail("idalloc: the command line must be in UTF-8", 2)
    if isinstance(error, ServerUnreachable):
        hint = _UNREACHABLE_HINTS.get(error.metadata.get("tls"))
        return _fail(f"{error.reason}: {error}{'; ' if hint else ''}{hint or ''}", 1)
    if isinstance(error, Unauthenticated):
        return _fail(f"{error.reason}: {error}; authenticate with --token-file, or --cert and --key", 1)
    if isinstance(error, QuotaExceeded) and error.retry_after:
        return _fail(f"{error.reason}: {error} (in {error.retry_after:.3f} s)", 1)
    if isinstance(error, IdallocError):
        return _fail(f"{error.reason}: {error}", 1)
    if isinstance(error, UsageError):
        message = explain(error, args)
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return _fail(f"idalloc: {message}{hint}", 2) if message else 2  # without a message, help was printed
    return _fail(f"idalloc: {type(error).__name__}: {error} (set PYTHONDEVMODE=1 to print the traceback)", 1)


def _fail(line: str, code: int) -> int:
    write_stderr(line)
    return code
