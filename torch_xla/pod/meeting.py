"""Meetings on the host: every rank of one process arrives with a value and leaves with everybody's."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from torch_xla import options


class PodError(RuntimeError):
  """The ranks of a pod are not at the same place; the text names who is where.

  Args:
    text: what failed, on which ranks, and the cure.
    fatal: True where a program already waits for peers that will not come: the process has to end soon.
    keeps_graph: True where what was to be launched is still pending and may be launched again.
  """

  def __init__(self, text: str, fatal: bool = False, keeps_graph: bool = False):
    super().__init__(text)
    self.fatal = fatal
    self.keeps_graph = keeps_graph


def names(ranks: Iterable[int]) -> str:
  """Writes rank numbers briefly.

  Args:
    ranks: rank numbers in any order.

  Returns:
    Text like "rank 3" or "ranks 0-2,7".
  """
  ranks = sorted(ranks)
  runs: list[list[int]] = []
  for rank in ranks:
    if runs and rank == runs[-1][1] + 1:
      runs[-1][1] = rank
    else:
      runs.append([rank, rank])
  text = ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)
  return f"rank{'s' if len(ranks) > 1 else ''} {text}"


class _Round:
  def __init__(self):
    self.values: dict[int, Any] = {}
    self.where: dict[int, str] = {}
    self.result: list[Any] | None = None
    self.error: str | None = None


class Board:
  """The place where the ranks of one process meet.

  Args:
    size: number of ranks.
    locate: says in words where a rank's thread is right now.
  """

  def __init__(self, size: int, locate: Callable[[int], str]):
    self.size = size
    self._locate = locate
    self._changed = threading.Condition()
    self._round = _Round()
    self._ended: dict[int, BaseException | None] = {}
    self._stopped: str | None = None
    self.failed = False  # whether any meeting failed or any rank raised
    # A rank that missed a failed meeting is told so when it gets there, so that all leave that meeting alike.
    self._owed: dict[int, str] = {}

  def exchange(self, rank: int, value: Any, where: str, timeout_s: float | None = None) -> list[Any]:
    """Waits until every rank has called this, then hands everyone all values.

    Args:
      rank: who calls.
      value: what this rank brings.
      where: what the rank is about to do and where in the program, for messages.
      timeout_s: the longest wait; None is XLA_POD_TIMEOUT_S.

    Returns:
      One value per rank, in rank order.

    Raises:
      PodError: a rank ended or raised, or did not come in time; every rank gets the error.
    """
    if timeout_s is None:
      timeout_s = options.get("XLA_POD_TIMEOUT_S")
    start = time.monotonic()
    with self._changed:
      if rank in self._owed:
        raise PodError(self._owed.pop(rank), keeps_graph=True)
      round_ = self._round
      round_.values[rank] = value
      round_.where[rank] = where
      if len(round_.values) == self.size:
        round_.result = [round_.values[r] for r in range(self.size)]
        self._round = _Round()
        self._changed.notify_all()
      while round_.result is None and round_.error is None:
        if self._stopped:
          self._fail(round_, self._stopped)
          break
        missing = [r for r in range(self.size) if r not in round_.values]
        gone = [r for r in missing if r in self._ended]
        left_s = start + timeout_s - time.monotonic()
        if gone:
          self._fail(round_, self._absence(round_, gone, f"{names(gone)} had already finished"))
        elif left_s <= 0:
          late = f"{names(missing)} did not come within {timeout_s:g} s (XLA_POD_TIMEOUT_S)"
          self._fail(round_, self._absence(round_, missing, late))
        else:
          self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
      if round_.error is not None:
        raise PodError(round_.error, keeps_graph=True)
      assert round_.result is not None
      return round_.result

  def end(self, rank: int, error: BaseException | None) -> None:
    """Notes that a rank will not come any more.

    Args:
      rank: who ended.
      error: what it raised; None where its function returned. An error stops all the others.
    """
    with self._changed:
      self._ended[rank] = error
      self.failed = self.failed or error is not None
      if error is not None and not self._stopped:
        self._stopped = f"stopped because rank {rank} raised {type(error).__name__}: {error}"
      self._changed.notify_all()

  def _absence(self, round_: _Round, absent: list[int], what: str) -> str:
    waiting: dict[str, list[int]] = {}
    for rank, where in round_.where.items():
      waiting.setdefault(where, []).append(rank)
    lines = [f"pod of {self.size} ranks: {what}."]
    lines += [f"  {names(ranks)} waited in {where}" for where, ranks in waiting.items()]
    lines += [f"  rank {rank} {'has finished' if rank in self._ended else self._locate(rank)}" for rank in absent]
    lines.append("Every rank has to run every collective; for a slow rank raise XLA_POD_TIMEOUT_S.")
    return "\n".join(lines)

  def _fail(self, round_: _Round, text: str) -> None:
    round_.error = text
    self.failed = True
    self._owed.update({r: text for r in range(self.size) if r not in round_.values and r not in self._ended})
    self._round = _Round()
    self._changed.notify_all()
