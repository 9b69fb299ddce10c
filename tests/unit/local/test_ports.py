"""Only the process that a port is held for can use the port."""

from __future__ import annotations

import errno
import socket
import sys
from contextlib import ExitStack

import pytest

from anabranch.command_error import CommandError
from anabranch.local.ports import held_port

HOST = "127.0.0.1"


def test_a_listener_can_use_a_held_port_again_and_again() -> None:
    with held_port(HOST) as port:
        for _ in range(2):  # the process that the port is held for, and its replacement
            with (
                socket.create_server((HOST, port)) as listener,  # this call sets SO_REUSEADDR
                socket.create_connection((HOST, port), timeout=5),
                listener.accept()[0],
            ):
                pass


@pytest.mark.skipif(sys.platform != "linux", reason="ports can be held on Linux only")
def test_no_other_socket_gets_a_held_port() -> None:
    with held_port(HOST) as port, socket.socket() as outgoing:
        with pytest.raises(OSError) as refused:
            outgoing.bind((HOST, port))
        assert refused.value.errno == errno.EADDRINUSE


def test_many_ports_are_different() -> None:
    with ExitStack() as held:
        assert len({held.enter_context(held_port(HOST)) for _ in range(50)}) == 50


def test_the_error_for_a_port_in_use_names_the_option_to_change() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(CommandError, match=rf"cannot listen on {HOST}:{port}: .*--port"), held_port(HOST, port):
            pass
