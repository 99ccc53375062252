"""The checkout that the tests stand in, and its build modules, which are no part of the package."""

import importlib
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "torch_xla"


def module(name: str) -> Any:
  """Returns a module of the checkout's root, which is on the path only while it is imported."""
  sys.path.insert(0, str(ROOT))
  try:
    return importlib.import_module(name)
  finally:
    sys.path.remove(str(ROOT))
