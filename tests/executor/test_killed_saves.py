"""Jobs killed while they save: at any moment the folder gives the step before or this one, whole.

``python -m benchmarks.reliability --full --only killed-saves`` kills many more.
"""

from tests.properties.killed_saves import failures


def test_a_job_killed_while_it_saves_leaves_one_whole_checkpoint():
    assert failures(6) == []
