"""Script: becomes a program under a system-call filter whose notifications somebody else answers.

`launcher.py SOCKET_FD SECCOMP_NUMBER FILTER_HEX PROGRAM ARGUMENTS...`: installs the filter (8 bytes per instruction), sends its listener
over the socket, and becomes the program. Imports nothing of ours: it starts in isolated mode.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys

_SET_MODE_FILTER, _NEW_LISTENER = 1, 8


def main(channel: int, seccomp: int, instructions: bytes, argv: list[str]) -> None:
    """Does not return. Raises OSError when the kernel refuses the filter."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(instructions) // 8, ctypes.addressof(code)))
    listener = ctypes.CDLL(None, use_errno=True).syscall(seccomp, _SET_MODE_FILTER, _NEW_LISTENER, program)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    connection = socket.socket(fileno=channel)
    socket.send_fds(connection, [b"\n"], [listener])
    os.close(listener)
    connection.close()
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]), sys.argv[4:])
