"""What any launcher's ranks do: `mpiexec -n 4 python ranks.py 4`, `srun -n 4 python ranks.py 4`."""

import os

import metrana_sync_shim as metrana

RANK_VARIABLES = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
rank = next(int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ)

run = metrana.init(
    project_name="ranks",
    run_name=os.environ.get("RUN_NAME", "ranks"),
    config={"created_by_rank": rank, "created_by_pid": os.getpid()},
)
for step in range(50):
    run.log_distributed("loss", rank + 1.0 / (1 + step), step=step)
run.log_rl_episode("return", float(rank), 0, episode=rank, env_id="env0")
run.close()
