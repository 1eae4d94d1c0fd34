"""A stored document."""

from typing import NamedTuple


class Document(NamedTuple):
    """A stored document."""

    key: str  # the text of its ``_id``, which is unique in its collection and ordered by its bytes
    text: str  # the normalised JSON text
