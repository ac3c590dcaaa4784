"""A client of the farm in a fork of its process: it opens connections of its own, because two writers would mix their requests on one."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path

from dart_envs.farm.transport import Transport, parse_address

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def serve(listener: socket.socket, connections: list[socket.socket]) -> None:
    """Answer every request with `{}`, and keep the connections open."""

    def talk(connection: socket.socket) -> None:
        while connection.recv(65_536):
            connection.sendall(ANSWER)

    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connections.append(connection)
        threading.Thread(target=talk, args=(connection,), daemon=True).start()


def test_a_fork_opens_connections_of_its_own(tmp_path: Path) -> None:
    connections: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "farm.sock"))
        listener.listen()
        threading.Thread(target=serve, args=(listener, connections), daemon=True).start()
        transport = Transport(parse_address(f"unix://{tmp_path / 'farm.sock'}"), None)
        loop = asyncio.new_event_loop()
        for _ in range(2):
            loop.run_until_complete(transport.send("GET", "/v1/farm"))
        assert len(connections) == 1, "the connection is kept for the next request"
        child = os.fork()
        if child == 0:
            try:
                loop.run_until_complete(transport.send("GET", "/v1/farm"))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        loop.run_until_complete(transport.send("GET", "/v1/farm"))
        assert len(connections) == 2
        loop.run_until_complete(transport.aclose())
        loop.close()
