"""What makes a statement on documents fail."""


class DocumentsError(Exception):
    """A statement on documents failed, and nothing of it was applied."""


class UnknownSchema(DocumentsError):
    """The schema does not exist.

    Attributes:
        schema: Its name.
    """

    def __init__(self, schema: str) -> None:
        super().__init__(f"schema {schema!r} does not exist")
        self.schema = schema


class UnknownCollection(DocumentsError):
    """The collection does not exist.

    Attributes:
        schema: The name of its schema.
        name: Its name.
    """

    def __init__(self, schema: str, name: str) -> None:
        super().__init__(f"collection {schema}.{name} does not exist")
        self.schema = schema
        self.name = name


class DuplicateKey(DocumentsError):
    """A key is already in the collection, or twice in the batch."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the collection has a document with _id {key!r} already")
        self.key = key


class KeyTooLong(DocumentsError):
    """The text of an ``_id`` is longer than ``MAX_KEY_BYTES``."""


class WriteConflict(DocumentsError):
    """Others changed the same document during each attempt.

    Earlier documents may have been changed.
    """


class Busy(DocumentsError):
    """Another writer held the database for too long."""


class InvalidJson(DocumentsError):
    """A text is not JSON.

    Attributes:
        reason: MySQL's description.
        position: Where, in bytes.
    """

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} at position {position}")
        self.reason = reason
        self.position = position


class InvalidLiteral(InvalidJson):
    """A JSON text of a criterion is not JSON."""


class NoJsonToLookFor(DocumentsError):
    """``in`` with an array looks for a condition, which is no JSON."""

    def __init__(self) -> None:
        super().__init__("a JSON string or JSON type is required")


class NotANumber(DocumentsError):
    """A statement that writes compares a text as a number, and it is none.

    Attributes:
        text: The text.
    """

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is not a number")
        self.text = text


class NoNumberInJson(DocumentsError):
    """A statement that writes compares a value of JSON as a number, and it is none."""

    def __init__(self) -> None:
        super().__init__("a value of JSON is not a number")


class NumberTooLarge(DocumentsError):
    """A statement that writes compares a text of JSON as a number, which does not fit in a double."""

    def __init__(self) -> None:
        super().__init__("a text of JSON is too large a number")


class TooDeep(DocumentsError):
    """A document is nested deeper than ``MAX_DEPTH``."""

    def __init__(self) -> None:
        super().__init__("The JSON document exceeds the maximum depth.")


class NotADocument(DocumentsError):
    """A value that must be a document is no object."""


class TooManyToSort(DocumentsError):
    """A statement sorts more documents, or longer ones, than fit in memory."""


class TooManyToChange(DocumentsError):
    """A statement changes more documents than the store can at once, and none was changed.

    Attributes:
        most: How many it can.
    """

    def __init__(self, most: int) -> None:
        super().__init__(f"a statement changes at most {most} documents; choose fewer, by criteria or a limit")
        self.most = most


class NotServed(DocumentsError):
    """A criterion combines types whose rule in MySQL is not known.

    Attributes:
        what: The combination.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not served")
        self.what = what


class InvalidEscape(DocumentsError):
    """The escape of LIKE is no constant of at most one character."""

    def __init__(self) -> None:
        super().__init__("Incorrect arguments to ESCAPE")


class PatternTooComplex(DocumentsError):
    """A pattern of LIKE would take long to match: what is between two ``%`` has too much around its ``_``.

    Attributes:
        what: The pattern's kind.
    """

    def __init__(self, texts: int, characters: int) -> None:
        self.what = f"LIKE with more than {texts} texts or {characters} characters around the _ between two %"
        super().__init__(f"{self.what} is not served")


class TooMuchWork(DocumentsError):
    """A statement takes more steps than ``MAX_STEPS``, or more for one document than ``MAX_STEPS_A_DOCUMENT``."""


class TookTooLong(DocumentsError):
    """A statement ran for longer than ``MAX_SECONDS``."""

    def __init__(self) -> None:
        super().__init__("the statement took too long")


class CallerLeft(DocumentsError):
    """The caller of a statement left before its end."""

    def __init__(self) -> None:
        super().__init__("the client has left")


class ArgumentsTooLarge(DocumentsError):
    """The arguments of a statement, each counted at each of its uses, are larger than a message may be.

    Attributes:
        most: The limit, in bytes.
    """

    def __init__(self, most: int) -> None:
        super().__init__(f"the arguments of a statement have more than {most} bytes at all their uses together")
        self.most = most


class ResultTooLarge(DocumentsError):
    """A projected row is larger than a message may be.

    Attributes:
        most: The limit, in bytes.
    """

    def __init__(self, most: int) -> None:
        super().__init__(f"a row of the result has more than {most} bytes")
        self.most = most


class DocumentTooLarge(DocumentsError):
    """A document would be larger than a message may be, or what a change writes into one."""

    def __init__(self, most: int) -> None:
        super().__init__(f"a changed document has at most {most} bytes")


class TooManyValues(DocumentsError):
    """A document has more values, arrays or objects than one may have."""
