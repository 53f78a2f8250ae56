"""One run, logged to from a coroutine, a thread, a second event loop and a signal handler."""

import asyncio
import os
import signal
import threading

import metrana_async as metrana
import metrana_sync_shim


def on_signal(*_):
    metrana.current_run().log("signals", 1.0)  # the point is taken; nothing to await here


async def main() -> metrana.Run:
    run = await metrana.init(project_name="anywhere")
    await run.log("loop", 1.0)
    run.log("loop", 2.0)  # no await: logged all the same, only backpressure is not waited for
    await asyncio.to_thread(metrana_sync_shim.log, "thread", 1.0)
    signal.signal(signal.SIGUSR1, on_signal)
    os.kill(os.getpid(), signal.SIGUSR1)
    return run


run = asyncio.run(main())
thread = threading.Thread(target=lambda: run.log("thread", 2.0))
thread.start()
thread.join()
print(asyncio.run(run.close()).statistics.committed, "points stored")
