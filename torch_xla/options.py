"""Every switch of this build: name, type, default and meaning; an unknown or malformed value is an error."""

import difflib
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Option(NamedTuple):
  """One row of the table of switches.

  Args:
    default: the text that stands for an unset variable.
    parse: turns text into the value; raises ValueError where the text is not allowed.
    allowed: the values that are allowed, in words.
    meaning: what the switch does, in one line.
  """

  default: str
  parse: Callable[[str], Any]
  allowed: str
  meaning: str


def _choice(*words: str) -> Callable[[str], str]:
  def parse(text: str) -> str:
    if text not in words:
      raise ValueError(text)
    return text

  return parse


def _flag(text: str) -> bool:
  return {"0": False, "1": True}[text]


def _positive(text: str) -> float:
  value = float(text)
  if not 0 < value < float("inf"):
    raise ValueError(text)
  return value


def _port(text: str) -> int:
  value = int(text)
  if not 0 <= value <= 65535:
    raise ValueError(text)
  return value


def _order(text: str) -> tuple[int, ...]:
  order = tuple(int(word) for word in text.split(",")) if text else ()
  if sorted(order) != list(range(len(order))):
    raise ValueError(text)
  return order


OPTIONS: dict[str, Option] = {
  "PJRT_ORDINALS": Option(
    "launch",
    _choice("launch", "device"),
    "launch or device",
    "number ranks as the launcher does, or by PJRT device id as stock does",
  ),
  "PJRT_CPU_DEVICE_ORDER": Option(
    "",
    _order,
    "a permutation of 0..n-1 such as 0,1,4,5,6,7,2,3",
    "rank i of an emulated pod runs on the device that the i-th number names",
  ),
  "XLA_POD_TIMEOUT_S": Option(
    "1800",
    _positive,
    "a number of seconds above 0",
    "the longest that any rank waits for another, at the start and at pod meetings",
  ),
  "XLA_POD_STRICT_ORDER": Option(
    "0",
    _flag,
    "0 or 1",
    "1 keeps collectives in the order of the program at the cost of one extra operation on their data",
  ),
  "XLA_POD_CHECK_GRAPHS": Option(
    "0",
    _flag,
    "0 or 1",
    "1 compares the ranks' graphs before each run; emulated pods always do",
  ),
  "XLA_POD_STORE_PORT": Option(
    "0",
    _port,
    "a port, or 0 to let the launcher choose",
    "port of the store that the processes meet at; several hosts need a fixed one, 8479 where this is 0",
  ),
  "XLA_POD_METADATA_URL": Option(
    "http://metadata.google.internal/computeMetadata/v1",
    str,
    "an URL",
    "root of the machine's metadata server; tests set it",
  ),
}

# Set by our own launchers for the processes that they start; nobody sets these by hand.
INTERNAL = frozenset({"XLA_POD_LAUNCH"})

_names_checked = False


def unknown_names(environ: Mapping[str, str]) -> list[str]:
  """Names the variables that look like switches of ours and are none.

  Args:
    environ: environment variables.

  Returns:
    One line per unknown variable, with the nearest known name.
  """
  known = [name for name in OPTIONS if name.startswith("XLA_POD_")]
  lines = []
  for name in sorted(environ):
    if name.startswith("XLA_POD_") and name not in OPTIONS and name not in INTERNAL:
      near = difflib.get_close_matches(name, known, 1, 0.0)
      lines.append(f"{name}={environ[name]!r}: no such switch; did you mean {near[0]}?")
  return lines


def get(name: str, environ: Mapping[str, str] | None = None) -> Any:
  """Reads one switch from the environment.

  Args:
    name: a key of OPTIONS.
    environ: environment variables; None reads this process's, now.

  Returns:
    The parsed value, or the parsed default where the variable is unset or empty.

  Raises:
    ValueError: the value is not allowed, or the environment holds an XLA_POD_ variable that is no switch.
  """
  global _names_checked
  option = OPTIONS[name]
  if environ is None:
    environ = os.environ
    if not _names_checked:
      if lines := unknown_names(environ):
        raise ValueError(f"environment: {'; '.join(lines)} Unset or rename it.")
      _names_checked = True
  text = environ.get(name, "").strip() or option.default
  try:
    return option.parse(text)
  except (ValueError, KeyError):
    default = option.default or "(nothing)"
    raise ValueError(f"{name}={text!r}: allowed is {option.allowed}; correct it or unset it for {default}.") from None
