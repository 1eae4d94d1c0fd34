"""What the consumers of the packages share."""

from tests.languages.conftest import secrets

__all__ = ["secrets"]
