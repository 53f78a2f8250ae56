"""A stand-in for the hosted service: takes runs and points, keeps them in files, answers at once.

``python -m benchmarks.hosted.stub DIRECTORY`` in the hosted client's environment, whose wheels
bring the messages. The first line on stdout is the port. Points of `METRIC` of a run are appended
to ``DIRECTORY/<run>.points`` before they are acknowledged; ``<run>.closed`` says that its writer
closed it. It deduplicates nothing: readers do, by
step. The lines ``mute`` and ``speak`` on stdin stop its answers on streams and start them again:
in between it goes on accepting, and answers pings and handshakes.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from metrana_protobuf.ingestion.v1.svc import api_pb2, api_pb2_grpc

from benchmarks.hosted.points import METRIC, RECORD

_THREADS = 16
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)


class Ingest(api_pb2_grpc.IngestServiceServicer):
    """The two calls that logging needs."""

    def __init__(self, directory: Path) -> None:
        """Keep points in `directory`."""
        self._directory = directory
        self._lock = threading.Lock()
        self._ids: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._orchestration: dict[str, str] = {}
        self.is_speaking = threading.Event()
        self.is_speaking.set()

    def InitializeRunLogging(  # noqa: N802 - the method's name on the wire
        self, request: Any, context: grpc.ServicerContext
    ) -> Iterator[Any]:
        """Admit a writer: whether it made the run, and that nothing is there to go on from."""
        run = request.run
        with self._lock:
            created = run.run_name not in self._ids
            if created:
                self._ids[run.run_name] = uuid.uuid4().bytes
                self._names[self._ids[run.run_name]] = run.run_name
                self._orchestration[run.run_name] = run.orchestration_identifier
        reply = api_pb2.InitializeRunLoggingResponse
        begun = reply.InitializedRun(
            created=created,
            run_id=self._ids[run.run_name],
            orchestration_identifier=self._orchestration[run.run_name],
        )
        begun.creation_time.GetCurrentTime()
        yield reply(initialized_run=begun)
        yield reply(last_logged_steps=reply.LastLoggedSteps(is_last=True))
        yield reply(rl_family_declarations=reply.RlFamilyDeclarations(is_last=True))
        yield reply(env_statuses=reply.EnvStatuses(is_last=True))

    def UpdateRunStream(  # noqa: N802 - the method's name on the wire
        self, request_iterator: Iterator[Any], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        """Store every frame, then acknowledge it."""
        declared: dict[int, str] = {}
        name = ""
        for frame in request_iterator:
            self.is_speaking.wait()
            name = self._names.get(frame.run_id, name)
            for series in frame.series_declarations:
                declared[series.declaration_id] = series.metric_name
            batches = [
                batch
                for update in frame.series
                if declared.get(update.series_id) == METRIC
                for batch in update.point_batches
            ]
            if batches:
                with (self._directory / f"{name}.points").open("ab") as file:
                    for batch in batches:
                        file.write(_points(batch).tobytes())
            if frame.HasField("close_run"):
                (self._directory / f"{name}.closed").touch()
            yield api_pb2.UpdateRunResponse()


def _points(batch: Any) -> np.ndarray:
    values = batch.values_f32 or batch.values
    points = np.empty(len(values), RECORD)
    points["value"] = values
    points["step"] = batch.steps or np.arange(
        batch.first_step, batch.first_step + len(values), dtype=np.int64
    )
    return points


def main() -> None:
    """Serve until stdin ends."""
    ingest = Ingest(Path(sys.argv[1]))
    server = grpc.server(futures.ThreadPoolExecutor(_THREADS), options=_OPTIONS)
    api_pb2_grpc.add_IngestServiceServicer_to_server(ingest, server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    for line in sys.stdin:
        do = ingest.is_speaking.clear if line == "mute\n" else ingest.is_speaking.set
        do()
        print("done", flush=True)
    ingest.is_speaking.set()
    server.stop(1).wait()


if __name__ == "__main__":
    main()
