"""A pseudo-terminal that remembers what was written to it, and what its screen looks like."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable

import pyte


class Terminal:
    """A terminal of so many columns and rows.

    data: all bytes that were written to it. screen: what they made of its screen.
    """

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        self.data = bytearray()
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._lock = threading.Lock()
        self.resize(columns, rows)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # how Linux says that the last program left
                return
            if not data:
                return
            with self._lock:
                self.data += data
                self._stream.feed(data)

    def text(self) -> str:
        """All that was written, escape codes included."""
        return self.data.decode(errors="replace")

    def lines(self) -> list[str]:
        """What the screen shows, every line as wide as it is."""
        with self._lock:
            return list(self.screen.display)

    def resize(self, columns: int, rows: int) -> None:
        """Another size; the kernel sends SIGWINCH to whoever has it as controlling terminal."""
        with self._lock:
            self.screen.resize(rows, columns)
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.master, keys.encode())

    def until(self, shows: Callable[[list[str]], bool], seconds: float = 60.0) -> list[str]:
        """The lines of the screen as soon as they are like that."""
        deadline = time.monotonic() + seconds
        while not shows(lines := self.lines()):
            if time.monotonic() > deadline:
                raise AssertionError("the screen did not get there:\n" + "\n".join(lines))
            time.sleep(0.02)
        return lines

    def hang_up_after(self, child: "subprocess.Popen[bytes]") -> int:
        """The exit code of the program on it, once all that it wrote was read."""
        code = child.wait(60)
        self._let_go()
        return code

    def close(self) -> None:
        """End it."""
        self._let_go()
        os.close(self.master)

    def _let_go(self) -> None:
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1
        self.thread.join(10)
