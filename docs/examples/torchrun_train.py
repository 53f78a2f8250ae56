"""Every rank logs to one run: `torchrun --nproc-per-node 4 torchrun_train.py`."""

import os

import torch
import torch.distributed as dist

import metrana_sync_shim as metrana

dist.init_process_group("gloo")
rank = dist.get_rank()
envs = [f"rank{rank}-env{m}" for m in range(2)]  # whole environments belong to one rank

metrana.init(
    project_name="ddp",
    run_name=os.environ.get("RUN_NAME", "torchrun"),
    config={"lr": 0.1, "created_by_rank": rank, "created_by_pid": os.getpid()},
)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(50):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metrana.log_distributed("loss", loss, step=step)  # one series, four writers
    metrana.log_rl_environment_step("reward", torch.rand(2, 8), step, envs, episode=step)
    if rank == 0:
        metrana.log("lr", 0.1)  # an ordered series has one writer

metrana.close()
dist.destroy_process_group()
