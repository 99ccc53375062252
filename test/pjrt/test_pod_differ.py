"""Ranks of an emulated pod that do not do the same: every rank gets one clear error and the process lives."""

import re

import pod_programs
import pytest

PROGRAM = """
def missing_once(r):
  y = full(r) + 1 if r == 3 else gather(full(r))
  torch_xla.sync()
  check(r)

def missing_at_the_end(r):
  if r != 3:
    gather(full(r))
    y = gather(full(r))
    torch_xla.sync()

def other_shape(r):
  y = gather(full(r)[:2] if r == 3 else full(r))
  torch_xla.sync()

def other_after_the_collective(r):
  y = gather(full(r))
  y = y.cos() if r == 3 else y.sin()
  torch_xla.sync()

def ordinal_as_attribute(r):
  y = gather(full(r)).roll(r)
  torch_xla.sync()

def ordinal_as_number(r):
  y = gather(full(r)) * r
  torch_xla.sync()
  return y[-1].item()

def read_by_one(r):
  y = gather(full(r))
  if r == 2: y.tolist()
  torch_xla.sync()

def two_programs_in_turn(r):
  for step in range(6):
    y = gather(full(r))
    z = y.sin() if step % 2 else y.cos()
    torch_xla.sync()
  return y[-1].item()

def one_takes_the_other(r):
  for step in range(6):
    y = gather(full(r))
    z = y.sin() if step % 2 or (step == 4 and r == 5) else y.cos()
    torch_xla.sync()

def late(r):
  if r == 7: time.sleep(6)
  gather(full(r)).tolist()

def late_and_caught(r):
  y = gather(full(r))
  torch_xla.sync()
  y = total(full(r))
  if r == 7: time.sleep(7)  # past the limit, before a second wait of that length ends
  try:
    torch_xla.sync()
    return "no error"
  except PodError as error:
    text = str(error)
  torch_xla.sync()
  assert y.tolist() == [SUM] * 4
  check(r)
  return text

def different_and_caught(r):
  try:
    y = gather(full(r)[: 2 if r == 3 else 4])
    torch_xla.sync()
    return "no error"
  except PodError as error:
    text = str(error)
  del y
  check(r)
  return text

def one_raises(r):
  for step in range(5):
    if r == 5 and step == 2: raise ValueError("boom")
    y = gather(full(r))
    torch_xla.sync()

def one_exits(r):
  check(r)
  sys.exit(3 if r == 4 else 0)

def wrong_argument(r):
  try:
    xm.all_gather(full(r), dim=9)
  except (ValueError, IndexError):
    pass
  check(r)
  return "usable"

def fine(r):
  check(r)
  return r

for fn in (
  missing_once, missing_at_the_end, other_shape, other_after_the_collective, ordinal_as_attribute, ordinal_as_number,
  read_by_one, two_programs_in_turn, one_takes_the_other, different_and_caught, one_raises, one_exits, wrong_argument,
):
  scenario(fn)
scenario(late, XLA_POD_TIMEOUT_S="2")
scenario(late_and_caught, XLA_POD_TIMEOUT_S="5")
scenario(fine)
"""


@pytest.fixture(scope="module")
def lines():
  return pod_programs.scenarios(PROGRAM)


@pytest.mark.parametrize(
  ("name", "patterns"),
  [
    ("missing_once", [r"rank(s 0-2,4-7| 3): the (step|read of a tensor) at \S+program\.py:\d+"]),
    (
      "missing_at_the_end",
      [r"rank 3 had already finished", r"ranks? [-,0-9]+ waited in the step at \S+program\.py:\d+"],
    ),
    (
      "other_shape",
      [r"rank 3: the step", r"all_gather\(float32\[2\]\) at \S+program\.py:\d+", r"first differing line"],
    ),
    (
      "other_after_the_collective",
      [r"ranks 0-2,4-7: .*stablehlo\.sine", r"rank 3: .*stablehlo\.cosine", r"first differing line \(\d+\)"],
    ),
    ("ordinal_as_attribute", [r"rank 0: the step", r"first differing line"]),
    ("read_by_one", [r"ranks 0-1,3-7: the step", r"rank 2: the read of a tensor at \S+program\.py:\d+"]),
    ("one_takes_the_other", [r"rank 5: .*stablehlo\.sine", r"ranks 0-4,6-7: .*stablehlo\.cosine"]),
    ("late", [r"rank 7 did not come within 2 s \(XLA_POD_TIMEOUT_S\)", r"rank 7 is at \S+program\.py:\d+"]),
  ],
)
def test_an_error_names_who_differs_and_where(lines, name, patterns):
  assert lines[name]["error"] == "PodError", lines[name]
  for pattern in patterns:
    assert re.search(pattern, lines[name]["text"]), (pattern, lines[name]["text"])


def test_a_pod_whose_ranks_change_program_together_goes_on(lines):
  assert lines["two_programs_in_turn"]["results"] == [7.0] * 8, lines["two_programs_in_turn"]


def test_a_number_that_differs_by_rank_is_no_difference(lines):
  assert lines["ordinal_as_number"]["results"] == [7.0 * r for r in range(8)], lines["ordinal_as_number"]


@pytest.mark.parametrize(
  ("name", "words"), [("late_and_caught", "did not come"), ("different_and_caught", "different graphs")]
)
def test_every_rank_gets_the_error_and_the_pod_stays_usable(lines, name, words):
  assert "error" not in lines[name], lines[name]
  assert all(words in text for text in lines[name]["results"]), lines[name]


def test_a_wrong_argument_leaves_the_pod_usable(lines):
  assert lines["wrong_argument"]["results"] == ["usable"] * 8, lines["wrong_argument"]


def test_the_first_failure_stops_all_and_shows_its_rank(lines):
  line = lines["one_raises"]
  assert (line["error"], line["text"]) == ("ValueError", "boom"), line
  assert line["seconds"] < 20
  assert "[rank 5] ValueError: boom" in line["stderr"]
  assert lines["one_exits"]["error"] == "SystemExit" and lines["one_exits"]["text"] == "3"


def test_a_new_pod_in_the_same_process_is_not_touched_by_the_failed_ones(lines):
  assert lines["fine"]["results"] == list(range(8)), lines["fine"]
