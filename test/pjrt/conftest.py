"""Pods for the tests of this folder: one at a time, kept while tests of the same device order follow each other."""

from collections.abc import Iterator

import pods
import pytest


@pytest.fixture(scope="module", params=["runtime"] if pods.ON_TPU else list(pods.ORDERS))
def pod(request: pytest.FixtureRequest) -> Iterator[pods.Pod]:
  """A pod in each device order; on a TPU the one that the runtime gives."""
  with_order = pods.Pod(pods.ORDERS.get(request.param))
  yield with_order
  with_order.close()


@pytest.fixture(scope="module")
def v3_pod() -> Iterator[pods.Pod]:
  """A pod whose ranks are not in device order."""
  with_order = pods.Pod(pods.ORDERS["v3"])
  yield with_order
  with_order.close()
