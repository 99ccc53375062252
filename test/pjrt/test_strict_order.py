"""XLA_POD_STRICT_ORDER=1: a chain through all collectives that changes no bit and no later graph."""

import on_ranks_training as ranks
import pods
import pytest
import torch


@pytest.fixture(scope="module")
def strict_pod():
  pod = pods.Pod(pods.ORDERS["v3"], env={"XLA_POD_STRICT_ORDER": "1"})
  yield pod
  pod.close()


def test_values_bits_graphs_and_chain(strict_pod):
  size = strict_pod.size
  answers = strict_pod.run(ranks.ordered_chain, 3)
  for rank, (results, compilations, _) in enumerate(answers):
    gathered, scattered, exchanged, permuted, reduced, empty = results
    rows = [[float("inf"), float("nan"), -0.0, 5e-324, peer] for peer in range(size) for _ in range(size)]
    assert torch.equal(gathered.view(torch.int32), torch.tensor(rows).view(torch.int32))
    assert scattered.tolist() == [[size, size]]
    assert exchanged.tolist() == [2**40 + peer for peer in range(size)]
    assert torch.signbit(permuted.imag).all() and permuted.real.tolist() == [1.0] * size
    assert reduced.all()
    assert empty.shape == (0, 3)
    assert compilations[0] == compilations[-1], f"rank {rank}: later steps compiled again"
  text = answers[0][2]
  # Each of the six waits for the token by a shifted replica id; one shift more reads the upper half of an int64.
  assert text.count("shift-right-logical(") == 7
  calls = [line for line in text.splitlines() if " call(" in line and "s32[1]" in line]
  assert len(calls) >= 6
