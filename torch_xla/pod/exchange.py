"""The one meeting at which processes tell each other their devices; the table is checked there, once."""

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

_FAREWELL_S = 5.0  # after a failed meeting the store stays up this long for those who still come to read why


class Card(NamedTuple):
  """What one process tells the others.

  Args:
    rank: number of the process in the job.
    size: processes in the job, as this process was told.
    environment: the class of environments.py that says so.
    slice: number of the slice.
    host: number of the host in the job.
    process: number of the process on its host.
    hostname: name of the machine.
    pid: process id.
    ordinals: this process's PJRT_ORDINALS.
    devices: (local torch index, PJRT id, coordinates) of each own device, in rank order.
    all_ids: PJRT ids of every device that this process's runtime knows of, sorted.
  """

  rank: int
  size: int
  environment: str
  slice: int
  host: int
  process: int
  hostname: str
  pid: int
  ordinals: str
  devices: Sequence[tuple[int, int, Sequence[int]]]
  all_ids: Sequence[int]

  @property
  def owner(self) -> str:
    """Returns how messages call the process."""
    return f"{self.hostname} pid {self.pid} ({self.environment})"


def fault(cards: Sequence[Card], size: int) -> str:
  """Looks for what keeps the cards from being one pod.

  Args:
    cards: a card of every process that came, in any order.
    size: processes that the launch wants.

  Returns:
    The error text; empty where each rank and each device has exactly one owner.
  """
  lines = []
  owners: dict[int, list[Card]] = {}
  for card in sorted(cards):
    owners.setdefault(card.rank, []).append(card)
  for rank, claimants in owners.items():
    if len(claimants) > 1:
      lines.append(f"rank {rank} is claimed by {' and by '.join(card.owner for card in claimants)}")
  missing = [rank for rank in range(size) if rank not in owners]
  if missing:
    lines.append(f"rank {', '.join(map(str, missing))} did not come")
  for name in ("size", "ordinals", "all_ids"):
    if len({json.dumps(getattr(card, name)) for card in cards}) > 1:
      first = cards[0]
      other = next(card for card in cards if getattr(card, name) != getattr(first, name))
      what = {"size": "the number of processes", "ordinals": "PJRT_ORDINALS", "all_ids": "the devices"}[name]
      lines.append(f"{what} is {getattr(first, name)} to {first.owner} and {getattr(other, name)} to {other.owner}")
  if not lines:
    devices: dict[int, list[Card]] = {}
    for card in cards:
      for _, device_id, _ in card.devices:
        devices.setdefault(device_id, []).append(card)
    for device_id, holders in sorted(devices.items()):
      if len(holders) > 1:
        lines.append(f"device {device_id} is held by {' and by '.join(card.owner for card in holders)}")
    unheld = sorted(set(cards[0].all_ids) - set(devices))
    if unheld:
      lines.append(f"device {', '.join(map(str, unheld))} is held by no process")
  if not lines:
    return ""
  return (
    f"pod of {size} processes: {'; '.join(lines)}. Start each rank exactly once, with the same environment "
    "on every host."
  )


def meet(store: dist.Store, card: Card, serves: bool, timeout_s: float) -> list[Card]:
  """Exchanges the cards of all processes; all return the same cards, or all raise the same error.

  Each process takes a seat, the last seat checks all cards and publishes the verdict, so the critical path is
  five store operations per process, the last seat's read of all cards, and a read of the verdict.

  Args:
    store: a connection to the launch's store.
    card: this process's card.
    serves: True in the process that serves the store; it leaves last.
    timeout_s: the longest wait for the others.

  Returns:
    The cards in rank order.

  Raises:
    RuntimeError: a rank came twice or not at all by the deadline, devices overlap, or the store went away.
  """
  start = time.monotonic()
  try:
    seat = store.add("identity/seats", 1)
    store.set(f"identity/card/{seat}", json.dumps(card))
    size = int(store.compare_set("identity/size", "", str(card.size)))
    if seat == size or card.size != size:
      cards = _cards(store, seat)
      _publish(store, {"error": fault(cards, size), "cards": cards})
    try:
      store.wait(["identity/verdict"], timedelta(seconds=timeout_s))
    except dist.DistStoreError:
      # The waits end at about the same moment everywhere; the first to publish decides the wording.
      cards = _cards(store, store.add("identity/seats", 0), 0.0)
      waited_s = time.monotonic() - start
      came = ", ".join(f"rank {c.rank} on {c.owner}" for c in sorted(cards))
      text = f"{fault(cards, size)} Waited {waited_s:.1f} s (XLA_POD_TIMEOUT_S); here are {came}."
      _publish(store, {"error": text, "cards": []})
    verdict = json.loads(store.get("identity/verdict"))
    # Where the processes disagree on the size, the larger one's last process may still be on its way.
    _leave(store, serves, max(size, card.size), bool(verdict["error"]), start + timeout_s)
  except dist.DistNetworkError as error:
    raise RuntimeError(
      f"pod of {card.size} processes: rank {card.rank} lost the store ({error}); the process that serves it, "
      "rank 0's unless the launcher does, has ended. Look at its output first."
    ) from error
  if verdict["error"]:
    raise RuntimeError(verdict["error"])
  cards = sorted(Card(*fields) for fields in verdict["cards"])
  if (holder := cards[card.rank]) != Card(*json.loads(json.dumps(card))):
    raise RuntimeError(
      f"pod of {card.size} processes: rank {card.rank} is claimed by {card.owner} and by {holder.owner}, "
      "which came first and runs on. Start each rank exactly once."
    )
  return cards


def _cards(store: dist.Store, seats: int, patience_s: float = _FAREWELL_S) -> list[Card]:
  """Reads the cards of the first seats; one that was not laid down in time is left out."""
  keys = [f"identity/card/{seat}" for seat in range(1, seats + 1)]
  deadline = time.monotonic() + patience_s
  while not store.check(keys):
    if time.monotonic() >= deadline:
      keys = [key for key in keys if store.check([key])]
      break
    time.sleep(0.01)
  return [Card(*json.loads(text)) for text in store.multi_get(keys)] if keys else []


def _publish(store: dist.Store, verdict: dict) -> None:
  store.compare_set("identity/verdict", "", json.dumps(verdict))


def _leave(store: dist.Store, serves: bool, size: int, failed: bool, deadline: float) -> None:
  """Says that this process has read the verdict; the one that serves the store waits for all to have."""
  if store.add("identity/read", 1) >= size:
    store.set("identity/all_read", "")
  if serves:
    left_s = _FAREWELL_S if failed else max(_FAREWELL_S, deadline - time.monotonic())
    try:
      store.wait(["identity/all_read"], timedelta(seconds=left_s))
    except dist.DistStoreError:
      pass  # somebody died between the verdict and reading it: the next meeting will name it
