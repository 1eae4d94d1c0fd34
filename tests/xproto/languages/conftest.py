"""The secrets of tests/languages; `make test-languages` runs both folders."""

from tests.languages.conftest import secrets as secrets
