"""A file system of its own that can be filled."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


class SmallDisk:
    """A file system in memory at a new directory; the test is skipped where this user may not mount one.

    Args:
        path: The directory.
        megabytes: Its size.
    """

    def __init__(self, path: Path, megabytes: int):
        self.path, self._bytes = path, megabytes << 20
        path.mkdir()
        if self._mount(f"size={self._bytes}"):
            pytest.skip("this user may not mount a small file system")

    def fill(self) -> None:
        """Leaves no room, by making the file system as small as what is in it."""
        while True:
            found = os.statvfs(self.path)
            if not self._mount(f"remount,size={(found.f_blocks - found.f_bfree) * found.f_frsize}"):
                return

    def free(self) -> None:
        """Makes room again."""
        assert not self._mount(f"remount,size={self._bytes}")

    def forbid(self) -> None:
        """Makes it read-only for all that is opened from now on."""
        for options in (["--bind", self.path, self.path], ["-o", "remount,bind,ro", self.path]):
            subprocess.run(["mount", *options], check=True)

    def allow(self) -> None:
        """Ends `forbid`."""
        self.remove()

    def _mount(self, options: str) -> int:
        return subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.path], capture_output=True, check=False
        ).returncode

    def remove(self) -> None:
        """Unmounts it."""
        subprocess.run(["umount", "-l", self.path], check=True)
