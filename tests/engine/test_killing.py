"""The short form of tests/support/kill_and_resume.py."""

import pytest

from support.kill_and_resume import kill_and_resume


@pytest.mark.slow
def test_a_run_that_is_killed_ends_as_the_one_that_is_not(tmp_path):
    counts = kill_and_resume(
        tmp_path, kills=2, processes=1, iterations=12, kinds=["all", "SIGTERM"], seed=1
    )
    assert counts["kills"] == 2 and counts["SIGTERM"] > 0 and counts["ends"] > 0
