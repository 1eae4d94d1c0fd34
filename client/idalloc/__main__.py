"""The command ``idalloc``, which needs the extra ``idalloc[cli]``."""

import sys


def main() -> int:
    """Run the command line, and return the exit code; without the extra, 2."""
    try:
        from idalloc import cli
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("rich", "typer"):
            raise
        sys.stderr.write(f"the command idalloc needs the package {error.name}: pip install 'idalloc[cli]'\n")
        return 2
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
