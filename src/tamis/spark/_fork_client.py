"""What stands for a Python process of Spark's that was forked from our server (`_fork_server`).

Run as a script, by the one that Spark has for its Python (`starting.worker_python`), with the
server's socket in the environment. It hands its arguments, environment and standard streams to the
server, lives as long as the process that was forked for them and ends as that does; a SIGTERM is
passed on. If the server is not there or does not take the request, it becomes the plain Python that
was asked for. Only the standard library is there, without `site`.
"""

import json
import os
import signal
import socket
import struct
import sys

_SOCKET = "TAMIS_SPARK_FORKS"
_WAIT = 30.0  # seconds for the server to have loaded everything


def main() -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.settimeout(_WAIT)
    try:
        server.connect(os.environ[_SOCKET])
        if server.recv(1) == b"r":
            server.settimeout(None)
            pid = _hand_over(server)
            if pid:
                _stand_for(pid, server)
    except OSError:
        pass  # nothing was forked, or it has ended with the server
    server.close()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


def _hand_over(server: socket.socket) -> int:
    """Return the process that was forked, 0 if none was."""
    asked = {"arguments": sys.argv[1:], "environment": dict(os.environ), "directory": os.getcwd()}
    request = json.dumps(asked).encode()
    socket.send_fds(server, [struct.pack("!I", len(request))], [0, 1, 2])
    server.sendall(request)
    return _number(server)


def _stand_for(pid: int, server: socket.socket) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(pid, number))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # they are the other's now, and end with it
        os.dup2(nothing, stream)
    try:
        status = _number(server)
    except OSError:  # the server is gone: so is what it forked, or soon
        os.kill(pid, signal.SIGTERM)
        status = 1
    os._exit(status if status >= 0 else 128 - status)


def _number(server: socket.socket) -> int:
    data = b""
    while len(data) < 4:
        more = server.recv(4 - len(data))
        if not more:
            raise ConnectionError("the server is gone")
        data += more
    return int(struct.unpack("!i", data)[0])


if __name__ == "__main__":
    main()
