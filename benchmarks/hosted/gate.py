"""A TCP relay that can fall silent: it goes on accepting and reading, and nothing comes back."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit

_PIECE_BYTES = 1 << 16


class Gate:
    """Relays every connection to one server until `deafen`."""

    def __init__(self, url: str) -> None:
        """Listen on a port of its own for the server at `url`."""
        parts = urlsplit(url)
        self._server = (parts.hostname or "", parts.port or 0)
        self._is_deaf = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def deafen(self) -> None:
        """Let nothing through any more, in either direction, on old and new connections."""
        self._is_deaf.set()

    def close(self) -> None:
        """End every connection."""
        self._listener.close()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._server)
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(_PIECE_BYTES):
                if not self._is_deaf.is_set():
                    sink.sendall(data)
            if not self._is_deaf.is_set():
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            return  # one of them is gone, or `close` was called
