"""Four ranks log one loss; each starts with the same orchestration id."""

import multiprocessing

import metrana_sync_shim as metrana


def rank_main(rank: int) -> None:
    run = metrana.init(
        project_name="ddp", run_name="sweep-7", orchestration_id="job-2025-06-23-abc", quiet=True
    )
    for global_step in range(100):
        metrana.log_distributed("loss", 1.0 / (1 + global_step) + rank, step=global_step)
        if rank == 0:  # a series of one writer
            metrana.log("lr", 3e-4)
    run.close()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank_main, args=(rank,)) for rank in range(4)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()

    with metrana.QueryClient(project="ddp") as client:
        loss = client.merged("sweep-7", "loss")
        print("step 0: min", loss.min[0], "max", loss.max[0], "of", loss.count[0], "values")
        print("lr has", len(client.series("sweep-7", "lr").step), "points")
