"""What a process learns of its dropped points, and answers accordingly."""

from __future__ import annotations


def test_points_known_to_be_dropped_do_not_raise_the_last_rl_step_and_episode(place):
    """A duplicate at a far rl_step does not count once the server has said that it was dropped."""
    with place.init() as run:
        run.log_rl_environment_step("r", 1.0, 0, "e", episode=0, env_step=5)
        run.log_rl_environment_step("r", 2.0, 99, "e", episode=0, env_step=3)
        run.flush()
        assert run.get_env_last_rl_step_and_episode("e") == (0, 0)
        run.log_rl_environment_step("r", 3.0, 2, "e", episode=4, env_step=0)
        assert run.get_env_last_rl_step_and_episode("e") == (2, 4)
        assert run.get_env_last_rl_step_and_episode("other") == (None, None)


def test_a_restart_does_not_lower_them(place):
    """An episode that starts over keeps the furthest rl_step that was stored."""
    with place.init() as run:
        run.log_rl_environment_step("r", [1.0, 2.0], 7, "e", episode=3, env_step=[0, 1])
        run.log_rl_environment_step("r", 9.0, 1, "e", episode=3, env_step=0)
        run.flush()
        assert run.get_env_last_rl_step_and_episode("e") == (7, 3)
