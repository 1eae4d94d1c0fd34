"""Errors of statements on documents."""

from typing import ClassVar


class DocumentsError(Exception):
    """A statement on documents failed, and nothing of it was applied."""

    default_text: ClassVar[str] = ""

    def __init__(self, text: str = "") -> None:
        super().__init__(text or self.default_text)


class UnknownSchema(DocumentsError):
    """The schema does not exist."""

    def __init__(self, schema: str) -> None:
        super().__init__(f"schema {schema!r} does not exist")
        self.schema = schema


class UnknownCollection(DocumentsError):
    """The collection does not exist."""

    def __init__(self, schema: str, name: str) -> None:
        super().__init__(f"collection {schema}.{name} does not exist")
        self.schema = schema
        self.name = name


class DuplicateKey(DocumentsError):
    """A key is already in the collection, or twice in the batch."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the collection already has a document with _id {key!r}")
        self.key = key


class KeyTooLong(DocumentsError):
    """The text of an ``_id`` is longer than ``MAX_KEY_BYTES``."""


class WriteConflict(DocumentsError):
    """Other writers changed a document during each attempt; earlier documents may be changed."""


class Busy(DocumentsError):
    """Another writer held the database for too long."""


class InvalidJson(DocumentsError):
    """A text is not JSON."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} at position {position}")
        self.reason = reason  # in MySQL's words
        self.position = position  # in bytes


class InvalidLiteral(InvalidJson):
    """A JSON text of a criterion is not JSON."""


class NotANumber(DocumentsError):
    """A statement that writes compares a text as a number, and the text is not one."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is not a number")
        self.text = text


class NoNumberInJson(DocumentsError):
    """A statement that writes compares a JSON value as a number, and the value is not one."""

    default_text = "a JSON value is not a number"


class NumberTooLarge(DocumentsError):
    """A statement that writes compares a JSON text as a number that does not fit in a double."""

    default_text = "the number in a JSON text is too large"


class TooDeep(DocumentsError):
    """A document is nested deeper than ``MAX_DEPTH``."""

    default_text = "The JSON document exceeds the maximum depth."


class NotADocument(DocumentsError):
    """The document is not a JSON object."""


class TooManyToSort(DocumentsError):
    """A statement sorts more documents, or longer ones, than fit in memory."""


class TooManyToChange(DocumentsError):
    """A statement would change more documents than the store can at once; it changed none."""

    def __init__(self, most: int) -> None:
        super().__init__(f"a statement changes at most {most} documents; choose fewer, by criteria or a limit")


class NotServed(DocumentsError):
    """A criterion combines types for which idalloc does not know MySQL's rule."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not served")
        self.what = what  # the combination


class InvalidEscape(DocumentsError):
    """The escape of LIKE is not a constant of at most one character."""

    default_text = "Incorrect arguments to ESCAPE"


class PatternTooComplex(DocumentsError):
    """A pattern of LIKE takes long to match: it has too much around the ``_`` between two ``%``."""

    def __init__(self, texts: int, characters: int) -> None:
        self.what = f"LIKE with more than {texts} texts or {characters} characters around the _ between two %"
        super().__init__(f"{self.what} is not served")


class TooMuchWork(DocumentsError):
    """A statement exceeds ``MAX_STEPS``, or ``MAX_STEPS_A_DOCUMENT`` for one document."""


class TookTooLong(DocumentsError):
    """A statement ran for longer than ``MAX_SECONDS``."""

    default_text = "the statement took too long"


class CallerLeft(DocumentsError):
    """The caller of a statement left before its end."""

    default_text = "the client has left"


class ArgumentsTooLarge(DocumentsError):
    """The arguments of a statement, counted at each use, are larger than a message may be."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the arguments of a statement have more than {most} bytes at all their uses together")


class ResultTooLarge(DocumentsError):
    """A projected row is larger than a message may be."""

    def __init__(self, most: int) -> None:
        super().__init__(f"a row of the result has more than {most} bytes")


class DocumentTooLarge(DocumentsError):
    """A changed document, or the values that a change writes, would exceed a message's limit."""

    def __init__(self, most: int) -> None:
        super().__init__(f"a changed document has at most {most} bytes")


class TooManyValues(DocumentsError):
    """A document has more than ``MAX_VALUES`` values, or ``MAX_CONTAINERS`` arrays and objects."""
