"""The examples as users run them: the per-rank table's verdicts, the training's accuracy and checkpoint."""

import os
import re
import subprocess
import sys

import checkout
import pytest
import torch

EXAMPLES = checkout.ROOT / "examples"
POD = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8"}


def run(*command: str, timeout_s: float = 280, **environ: str) -> subprocess.CompletedProcess:
  """Runs Python in a clean environment: switches of this test run must not reach the example."""
  switches = re.compile(r"PJRT_|XLA_|CPU_NUM_DEVICES|TPU_")
  clean = {name: value for name, value in os.environ.items() if not switches.match(name)}
  return subprocess.run(
    [sys.executable, *command], env=clean | environ, capture_output=True, text=True, timeout=timeout_s
  )


@pytest.fixture(scope="module")
def table() -> subprocess.CompletedProcess:
  return run(str(EXAMPLES / "per_rank.py"), PYTHONIOENCODING="utf-8")


def cells(text: str) -> list[list[str]]:
  """Returns the cells of the table's ranks, line by line."""
  lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]
  assert len(lines) == 16, text
  return lines


def test_per_rank_table_says_that_all_of_ours_are_right(table):
  assert table.returncode == 0, table.stderr
  assert "Ours: 64 of 64." in table.stdout
  for line in cells(table.stdout):
    for collective in line[2:]:
      right, _, _, _, ours, *marks = collective.split()
      assert ours == right
      assert marks == ["✓", "✓"]


def test_per_rank_table_shows_the_emulated_v3_8(table):
  devices = [line[1] for line in cells(table.stdout)]
  assert devices == [f"CPU:{device}" for device in (0, 1, 4, 5, 6, 7, 2, 3)] * 2


def test_per_rank_table_shows_stocks_device_order(table):
  # Rank 2 is on device 4: stock gives it shard 4, and puts its number into place 4.
  rank_2, rank_2_more = (line for line in cells(table.stdout) if line[0] == "2")
  assert "01672345 ✗ ✗" in rank_2[2]
  assert "-4 ✗ ✗" in rank_2[3]
  assert "-4:01672345 ✗ ✗" in rank_2_more[2]
  assert "7 ✗ ✗" in rank_2_more[3]
  for line in cells(table.stdout):
    for collective in line[2:]:
      right, stock, *marks = collective.split()[:4]
      assert marks == ["✓" if stock == right else "✗"] * 2


def check_training(done: subprocess.CompletedProcess, checkpoint, ranks: int) -> None:
  assert done.returncode == 0, done.stderr
  found = re.search(r"(\d+) ranks, parameters equal on all\. Test accuracy ([\d.]+)\.", done.stdout)
  assert found, done.stdout
  assert int(found[1]) == ranks
  assert float(found[2]) > 0.95
  assert done.stdout.count("Test accuracy") == 1  # one rank speaks
  assert done.stderr.count("100%|") >= 1  # and shows its progress
  model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
  model.load_state_dict(torch.load(checkpoint, weights_only=True))


def test_training_on_an_emulated_pod(tmp_path):
  checkpoint = tmp_path / "digits.pt"
  order = "0,1,4,5,6,7,2,3"
  done = run(str(EXAMPLES / "train.py"), "--checkpoint", str(checkpoint), **POD, PJRT_CPU_DEVICE_ORDER=order)
  check_training(done, checkpoint, 8)


def test_training_started_by_pod_run(tmp_path):
  checkpoint = tmp_path / "digits.pt"
  done = run(
    *("-m", "torch_xla.pod", "run", "--topology", "v3-8"),
    *(str(EXAMPLES / "train.py"), "--checkpoint", str(checkpoint)),
  )
  check_training(done, checkpoint, 8)


def test_training_on_one_device(tmp_path):
  checkpoint = tmp_path / "digits.pt"
  done = run(str(EXAMPLES / "train.py"), "--checkpoint", str(checkpoint), PJRT_DEVICE="CPU")
  check_training(done, checkpoint, 1)


def test_training_refuses_a_batch_that_no_step_could_have(tmp_path):
  done = run(str(EXAMPLES / "train.py"), "--batch-size", "9999", PJRT_DEVICE="CPU", CPU_NUM_DEVICES="1")
  assert done.returncode == 2
  assert "--batch-size 9999" in done.stderr
