"""Commands of other packages, such as the server's."""

from typing import Any

import pytest

from idalloc import cli
from tests.support.command_line import Command


def add_plugins(monkeypatch: pytest.MonkeyPatch, **load: Any) -> None:
    def plugins() -> dict[str, Any]:
        return {name: Entry(name, function) for name, function in load.items()}

    class Entry:
        def __init__(self, name: str, function: Any) -> None:
            self.name, self._function = name, function

        def load(self) -> Any:
            return self._function()

    monkeypatch.setattr(cli._plugins, "_plugins", plugins)


def test_missing_server_names_the_extra_to_install(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server's packages, serve names what to install and exits with 2."""

    def missing() -> None:
        raise ModuleNotFoundError("No module named 'structlog'", name="structlog")

    add_plugins(monkeypatch, serve=missing)
    line = run.error_line(2, "serve", "--listen", "127.0.0.1:0")
    assert "pip install 'idalloc[server]'" in line
    assert "structlog" in line
    assert "serve" in run("--help")


def test_plugin_command_acts_like_a_built_in_one(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of another package has arguments, errors and help like the client's own."""
    import typer

    def greet(name: str, loud: bool = False) -> None:
        """Greet."""
        print(f"hello {name}" + "!" * loud)

    group = typer.Typer()
    group.command("show")(lambda: print("shown"))
    group.callback()(lambda: None)
    add_plugins(monkeypatch, greet=lambda: greet, config=lambda: group)
    assert run("greet", "you", "--loud") == "hello you!\n"
    assert run("config", "show") == "shown\n"
    assert "--bogus" in run.error_line(2, "greet", "you", "--bogus")
    assert "greet" in run("--help")


def test_plugin_prints_by_the_printer_of_the_context(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of another package has --output at all levels if it takes a context."""
    import typer

    group = typer.Typer()

    @group.command()
    def show(context: typer.Context, size: int = 1) -> None:
        context.obj.record([("size", str(size))], lambda: {"size": size})

    add_plugins(monkeypatch, things=lambda: group, run=lambda: lambda: None)
    assert run("things", "show", "--size", "2") == "size: 2\n"
    for line in ("--json things show", "things --json show", "things show --json", "things show --output json"):
        assert run(*line.split()) == '{\n  "size": 1\n}\n'
    assert "--json" in run.error_line(2, "run", "--json")
