"""Training: gradients averaged over groups, buckets, parameters from the master, one program for all ranks."""

import on_ranks_training as ranks
import pytest
import reference
import torch


@pytest.mark.parametrize("bucket_mb", ["0", "1"])
def test_a_step_averages_over_the_group(v3_pod, bucket_mb):
  assert v3_pod.run(ranks.grouped_step, bucket_mb) == [1.0] * v3_pod.size


def test_buckets_change_nothing(v3_pod):
  size = v3_pod.size
  given = [[ranks.number((size, n), rank, n) for n in (1, 2, 3)] for rank in range(size)]
  columns = [[mine[index] for mine in given] for index in range(3)]
  wanted = [
    [reference.all_gather(column) for column in columns],
    [reference.all_gather(column) for column in columns],
    [reference.reduce_scatter(column, "sum", 0.5, 0) for column in columns],
    [reference.all_reduce(column, "sum", 0.5) for column in columns],
  ]
  for rank, lists in enumerate(v3_pod.run(ranks.bucketized)):
    for got, want in zip(lists, wanted, strict=True):
      for tensor, column in zip(got, want, strict=True):
        torch.testing.assert_close(tensor, column[rank], rtol=1e-5, atol=1e-5)


def test_everybody_starts_with_the_masters_parameters(v3_pod):
  torch.manual_seed(0)
  model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
  model[1].num_batches_tracked.fill_(7)
  for mine in v3_pod.run(ranks.master_parameters):
    for tensor, want in zip(mine, (*model.parameters(), *model.buffers()), strict=True):
      assert torch.equal(tensor, want.detach())


def test_data_parallel_training_is_training_on_the_whole_batch(v3_pod):
  steps = 5
  torch.manual_seed(0)
  model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
  for step in range(steps):
    optimizer.zero_grad()
    batch = torch.cat([ranks.number((4, 5), rank, step) for rank in range(v3_pod.size)])
    model(batch).square().mean().backward()
    optimizer.step()
  answers = v3_pod.run(ranks.data_parallel, steps)
  for parameters, compiled in answers:
    assert compiled == 0, "a step that was seen before was compiled again"
    for mine, first, want in zip(parameters, answers[0][0], model.parameters(), strict=True):
      assert torch.equal(mine, first)
      torch.testing.assert_close(mine, want.detach(), rtol=1e-5, atol=1e-6)


def test_old_names_run(v3_pod):
  for rank, (ordinal, other, local) in enumerate(v3_pod.run(ranks.old_names)):
    assert (ordinal, other) == (rank, rank)
    assert 0 <= local < v3_pod.size
