"""``anabranch console`` as a process, as a user runs it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

DEADLINE_S = 60.0


class Served:
    """A console that runs as a process."""

    def __init__(self, bootstrap: str, *options: str) -> None:
        command = [sys.executable, "-m", "anabranch.cli.main", "console", "-b", bootstrap, "--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        output = self._process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", output)
        assert found is not None, output
        self.url = found[0]

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(DEADLINE_S)
        finally:
            self._process.kill()
            self._process.communicate()

    @property
    def exit_status(self) -> int | None:
        return self._process.poll()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=DEADLINE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
