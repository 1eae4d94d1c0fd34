"""When a request is sent again."""

import json
from importlib.resources import files

import grpc
import pytest

from idalloc import IdallocError, ServerUnreachable
from idalloc._core.calls import node
from idalloc._core.pipeline import Pending


@pytest.mark.parametrize("error", [ServerUnreachable(), IdallocError(code=grpc.StatusCode.CANCELLED)])
def test_calls_are_retried_as_the_retry_policy_says(error: IdallocError) -> None:
    """Attempts and delays are those of service_config.json; gRPC adds 20 % by chance, too."""
    [config] = json.loads(files("idalloc.v1").joinpath("service_config.json").read_text())["methodConfig"]
    policy = config["retryPolicy"]
    pending = Pending(node(), 60)
    for retry in range(policy["maxAttempts"] - 1):
        delay = float(policy["initialBackoff"][:-1]) * policy["backoffMultiplier"] ** retry
        assert 0.8 * delay <= pending.retry_delay(error) <= 1.2 * delay
    with pytest.raises(type(error)):
        pending.retry_delay(error)
