"""The code blocks of a page are found, and run as a reader would run them."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.documents import blocks, commands, free_port, matches, run
from tests.support.terminal import Terminal

PAGE = """
# Orders

```sh
export COUNT=3 && mkdir ids
cd ids
```

## Serve

```console
$ idalloc serve
idalloc … serves on 127.0.0.1:50051, …
```

```console
$ idalloc allocate orders \\
    $COUNT --ranges
created sequence 'orders'
1 3 1
$ idalloc sequences show orders | grep -c name
1
$ idalloc allocate orders 0x
…
```

- In a list:

  ```python
  # more/ids.py
  import idalloc
  ADDRESS = "127.0.0.1:50051"
  ```

```python
import sys
sys.path.append("more")
from more.ids import ADDRESS, idalloc
```

```python
with idalloc.Client(ADDRESS) as client:
    print(client.allocate_range("orders", 2).ids)  # range(4, 6)
```

```text
not run
```
"""


def test_blocks_are_found_with_heading_and_line() -> None:
    """Each fenced block has its language, heading, line, and its text without indentation."""
    found = blocks(PAGE)
    assert [each.language for each in found] == ["sh", "console", "console", *["python"] * 3, "text"]
    assert (found[0].heading, found[0].line, found[0].text) == ("Orders", 4, "export COUNT=3 && mkdir ids\ncd ids\n")
    assert (found[1].heading, found[3].text.splitlines()[0]) == ("Serve", "# more/ids.py")


def test_commands_are_found_with_their_output() -> None:
    """Lines that end in a backslash continue a command; its output is all up to the next one."""
    found = [*commands(blocks(PAGE)[2].text)]
    assert found[0] == ("idalloc allocate orders \\\n    $COUNT --ranges", "created sequence 'orders'\n1 3 1")
    assert found[2] == ("idalloc allocate orders 0x", "…")


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("1\n2", "1\r\n2\r\n", True),
        ("1\n2", "1\n3", False),
        ("", "", True),
        ("", "1", False),
        ("…", "", True),
        ("1\n…\n9", "1\n5\n6\n9", True),
        ("1\n…\n9", "1\n5\n6", False),
        ("at …/ids.db", "at /tmp/ids.db", True),
        (" name   orders", "\x1b[1m name\x1b[0m orders  ", True),
        ("ttl 179s, 2026-11-21T15:58:55Z", "ttl 9.5s, 2027-01-02T03:04:05.678Z", True),
        ("00006b017bcf0000000000000001", "00006b017bd00000000000000001", True),
        ("00006b017bcf0000000000000001", "00006b017bcf0000000000000002", False),
    ],
)
def test_output_is_compared_but_for_what_varies(shown: str, printed: str, same: bool) -> None:
    """Times, start timestamps, colours and columns may differ; ids and all other text may not."""
    assert matches(shown, printed) == same


@pytest.mark.test_long
def test_a_page_runs_in_one_terminal(tmp_path: Path) -> None:
    """Variables, the folder, files, the server and the interpreter last from block to block."""
    with closing(Terminal(tmp_path, {50051: free_port()})) as terminal:
        for block in blocks(PAGE):
            run(block, terminal)
        assert (terminal.folder / "more" / "ids.py").exists()
        terminal.stop_servers()


@pytest.mark.parametrize("text", ["```sh\nfalse\ntrue\n```", "```console\n$ echo 1\n2\n```", "```python\n1 / 0\n```"])
def test_a_block_that_fails_is_reported(tmp_path: Path, text: str) -> None:
    """A command that fails, prints something else, or raises is an error that names the block."""
    with (
        closing(Terminal(tmp_path, {50051: free_port()})) as terminal,
        pytest.raises(AssertionError, match="in line 1"),
    ):
        run(blocks(text)[0], terminal)
