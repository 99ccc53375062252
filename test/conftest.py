"""What every test relies on: the package under test is the installed one, never the checkout's folder."""

import importlib.util
import pathlib
import sys

import checkout
import pytest


def pytest_configure() -> None:
  """Stops before the first test when `import torch_xla` would not give a whole installed package."""
  spec = importlib.util.find_spec("torch_xla")
  if spec is None or spec.origin is None:
    raise pytest.UsageError(f"torch_xla: {sys.executable} has no installed package; run `make venv`")
  if pathlib.Path(spec.origin).parent == checkout.PACKAGE:
    raise pytest.UsageError(
      f"torch_xla: it would be imported from {checkout.ROOT}, which holds our half only; "
      "run .venv/bin/pytest rather than python -m pytest, and take the checkout off PYTHONPATH"
    )
