"""The repository's folder."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
