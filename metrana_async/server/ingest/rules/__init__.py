"""What a logged point becomes: pure functions of (cursors, columns, writers).

No I/O and no clock. `points` judges STANDARD and EPISODE rows, `env_steps` judges ENV_STEP segments
(with `units`, the state of single episodes), `verdict` holds the words both answer in. Cursors
change only through their `absorb` methods, which are also what replays stored tables after a
restart of the server: so what was judged live and what is rebuilt cannot differ.
"""
