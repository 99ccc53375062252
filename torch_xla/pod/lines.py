"""Whole lines on standard output: `print` writes its parts one by one, and those of rank threads would mix."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any


class _Lines:
  """Holds back what a thread writes until its line ends or it flushes.

  Args:
    stream: where the lines go.
  """

  def __init__(self, stream: Any):
    self._stream = stream
    self._lock = threading.Lock()
    self._begun: dict[int, str] = {}

  def write(self, text: str) -> int:
    thread = threading.get_ident()
    lines, end, begun = (self._begun.get(thread, "") + text).rpartition("\n")
    self._begun[thread] = begun
    if end:
      with self._lock:
        self._stream.write(lines + end)
    return len(text)

  def flush(self) -> None:
    begun = self._begun.pop(threading.get_ident(), "")
    with self._lock:
      self._stream.write(begun)
      self._stream.flush()

  def close_lines(self) -> None:
    """Writes what no thread has ended or flushed."""
    with self._lock:
      self._stream.write("".join(self._begun.values()))
      self._begun.clear()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


@contextlib.contextmanager
def whole_lines() -> Iterator[None]:
  """Keeps the lines that threads print whole while it is entered."""
  stock, lines = sys.stdout, _Lines(sys.stdout)
  sys.stdout = lines
  try:
    yield
  finally:
    if sys.stdout is lines:
      sys.stdout = stock
    lines.close_lines()
