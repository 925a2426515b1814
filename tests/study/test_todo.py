"""What `harness run` does with a run, from what is found in its folder."""

import pytest

from harness.study.todo import What, decide

FAILED = {"state": "failed", "reason": "error", "failures": 1}
CASES = [
    ({"state": "waiting"}, False, False, None, What.START),
    ({"state": "waiting", "reason": "interrupted"}, False, True, None, What.RESUME),
    ({"state": "failed", "reason": "lost"}, False, True, None, What.RESUME),
    ({"state": "failed", "reason": "lost", "failures": 9}, False, False, None, What.RESUME),
    ({"state": "running"}, False, True, None, What.ELSEWHERE),
    (FAILED, False, False, None, What.RETRY),
    (FAILED, True, False, None, What.FINISHED),
    (FAILED | {"failures": 3}, False, True, None, What.GIVEN_UP),
    (FAILED | {"failures": 3}, False, True, "failed", What.RETRY),
    (FAILED | {"reason": "out_of_memory"}, False, False, None, What.RETRY),
    (FAILED | {"reason": "diverged"}, False, False, None, What.DIVERGED),
    (FAILED | {"reason": "diverged"}, False, False, "failed", What.DIVERGED),
    ({"state": "waiting"}, False, False, "failed", What.LEFT_OUT),
    ({"state": "failed", "reason": "lost"}, False, True, "failed", What.LEFT_OUT),
    ({"state": "finished"}, True, False, "failed", What.FINISHED),
]


@pytest.mark.parametrize("state, complete, has_checkpoint, only, expected", CASES)
def test_the_rule(
    state: dict[str, object], complete: bool, has_checkpoint: bool, only: str | None, expected: What
) -> None:
    assert decide(state, complete, has_checkpoint, 3, only) is expected
