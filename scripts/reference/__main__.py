"""Writes all pages: ``python -m scripts.reference``."""

from scripts.reference.pages import FOLDER, write

if __name__ == "__main__":
    write(FOLDER)
