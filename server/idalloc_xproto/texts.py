"""Texts that clients send as bytes."""

from idalloc_xproto.errors import XError


def text_of(content: bytes) -> str:
    """Decode UTF-8.

    Raises:
        XError: The content is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise XError(1300, f"Invalid utf8mb4 character string: '{content[error.start :][:6].hex().upper()}'") from None
