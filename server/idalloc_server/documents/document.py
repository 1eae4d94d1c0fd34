"""A stored document."""

from typing import NamedTuple


class Document(NamedTuple):
    """A stored document.

    Attributes:
        key: The text of its ``_id``, which is unique in its collection and ordered by its bytes.
        text: Its normalised JSON text.
    """

    key: str
    text: str
