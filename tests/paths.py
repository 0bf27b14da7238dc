"""Where things stand in the checkout, for tests."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
