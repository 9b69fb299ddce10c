"""Ports of a local cluster, held from the moment they are chosen.

A free port must be held until its process listens, and while that process is restarted. Otherwise the kernel may give
the port to an outgoing connection or to another cluster.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.command_error import CommandError
from anabranch.protocol.addresses import join_address


@contextmanager
def held_port(host: str, port: int = 0, key: str = "--port") -> Iterator[int]:
    """Hold ``port``, or a free port for 0, while a process of the caller may listen on it.

    The holding socket is bound and never listens. On Linux, another socket may listen on the port when both have
    SO_REUSEADDR. Linux does not choose the port for other sockets, and does not let a socket without the option bind
    it. On other systems a bound socket would block the listener, so there the port is only chosen. Raises
    ``CommandError`` when the port is taken.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((host, port))
        except OSError as error:
            raise CommandError(
                f"cannot listen on {join_address(host, port)}: {error.strerror}; choose another port with {key}"
            ) from error
        chosen: int = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield chosen
