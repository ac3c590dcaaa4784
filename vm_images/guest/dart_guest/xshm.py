"""Screen grabs through xcb and MIT-SHM.

Role: copy the root window's pixels into memory shared with the X server, one round trip a frame.
Rule: its own connection to the X server, used by one thread; `release` drops the shared memory (before a checkpoint)
and the next grab makes it anew. Raises GrabError, never exits the process.
Non-goals: input, encoding.
"""

from __future__ import annotations

import ctypes

from PIL import Image

from dart_guest import pixels

Z_PIXMAP = 2
ALL_PLANES = 0xFFFFFFFF
IPC_PRIVATE, IPC_CREAT, IPC_RMID = 0, 0o1000, 0


class GrabError(Exception):
    """The screen could not be read: the X server is gone or refused."""


class Screen(ctypes.Structure):
    """The head of xcb_screen_t."""

    _fields_ = (
        ("root", ctypes.c_uint32),
        ("default_colormap", ctypes.c_uint32),
        ("white_pixel", ctypes.c_uint32),
        ("black_pixel", ctypes.c_uint32),
        ("current_input_masks", ctypes.c_uint32),
        ("width", ctypes.c_uint16),
        ("height", ctypes.c_uint16),
    )


class ScreenIterator(ctypes.Structure):
    """xcb_screen_iterator_t."""

    _fields_ = (("data", ctypes.POINTER(Screen)), ("rem", ctypes.c_int), ("index", ctypes.c_int))


class Cookie(ctypes.Structure):
    """Any xcb cookie."""

    _fields_ = (("sequence", ctypes.c_uint),)


def load_libraries() -> tuple[ctypes.CDLL, ctypes.CDLL, ctypes.CDLL]:
    """libxcb, libxcb-shm and libc with the signatures used here."""
    xcb = ctypes.CDLL("libxcb.so.1")
    shm = ctypes.CDLL("libxcb-shm.so.0")
    libc = ctypes.CDLL(None, use_errno=True)
    xcb.xcb_connect.restype = ctypes.c_void_p
    xcb.xcb_connect.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    xcb.xcb_connection_has_error.argtypes = [ctypes.c_void_p]
    xcb.xcb_disconnect.argtypes = [ctypes.c_void_p]
    xcb.xcb_disconnect.restype = None
    xcb.xcb_get_setup.restype = ctypes.c_void_p
    xcb.xcb_get_setup.argtypes = [ctypes.c_void_p]
    xcb.xcb_setup_roots_iterator.restype = ScreenIterator
    xcb.xcb_setup_roots_iterator.argtypes = [ctypes.c_void_p]
    xcb.xcb_generate_id.restype = ctypes.c_uint32
    xcb.xcb_generate_id.argtypes = [ctypes.c_void_p]
    xcb.xcb_request_check.restype = ctypes.c_void_p
    xcb.xcb_request_check.argtypes = [ctypes.c_void_p, Cookie]
    shm.xcb_shm_attach_checked.restype = Cookie
    shm.xcb_shm_attach_checked.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint8]
    shm.xcb_shm_detach_checked.restype = Cookie
    shm.xcb_shm_detach_checked.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    shm.xcb_shm_get_image.restype = Cookie
    shm.xcb_shm_get_image.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int16, ctypes.c_int16, ctypes.c_uint16, ctypes.c_uint16,
        ctypes.c_uint32, ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint32,
    ]  # fmt: skip
    shm.xcb_shm_get_image_reply.restype = ctypes.c_void_p
    shm.xcb_shm_get_image_reply.argtypes = [ctypes.c_void_p, Cookie, ctypes.c_void_p]
    libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
    libc.shmat.restype = ctypes.c_void_p
    libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    libc.shmdt.argtypes = [ctypes.c_void_p]
    libc.shmctl.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free.restype = None
    return xcb, shm, libc


class ShmGrabber:
    """Reads the whole root window of a 24-bit screen."""

    def __init__(self, display: str) -> None:
        self.xcb, self.shm, self.libc = load_libraries()
        self.connection = self.xcb.xcb_connect(display.encode(), None)
        if self.xcb.xcb_connection_has_error(self.connection):
            self.xcb.xcb_disconnect(self.connection)
            raise GrabError(f"no X server answers on {display}")
        iterator = self.xcb.xcb_setup_roots_iterator(self.xcb.xcb_get_setup(self.connection))
        self.root = int(iterator.data.contents.root)
        self.width = int(iterator.data.contents.width)
        self.height = int(iterator.data.contents.height)
        self.address: int | None = None
        self.segment = 0

    def attach(self) -> int:
        """Make the shared segment and hand it to the server; returns its address here."""
        shmid = self.libc.shmget(IPC_PRIVATE, self.width * self.height * 4, IPC_CREAT | 0o600)
        if shmid < 0:
            raise GrabError("no shared memory segment could be made")
        # The X server runs as the user and the agent as root: hand the segment over, then attach as owner.
        self.give_to_user(shmid)
        address = self.libc.shmat(shmid, None, 0)
        self.segment = self.xcb.xcb_generate_id(self.connection)
        failure = self.xcb.xcb_request_check(
            self.connection, self.shm.xcb_shm_attach_checked(self.connection, self.segment, shmid, 0)
        )
        self.libc.shmctl(shmid, IPC_RMID, None)
        if failure or self.xcb.xcb_connection_has_error(self.connection):
            self.libc.free(failure)
            self.libc.shmdt(address)
            raise GrabError("the X server could not attach shared memory")
        self.address = int(address)
        return self.address

    def give_to_user(self, shmid: int) -> None:
        """Make the segment's owner the session's user (struct shmid_ds begins with ipc_perm: key, uid, gid)."""
        from dart_guest.session import GID, UID

        description = (ctypes.c_uint32 * 64)()
        if self.libc.shmctl(shmid, 2, ctypes.byref(description)) == 0:
            description[1], description[2] = UID, GID
            self.libc.shmctl(shmid, 1, ctypes.byref(description))

    def release(self) -> None:
        """Drop the shared memory on both sides."""
        if self.address is None:
            return
        failure = self.xcb.xcb_request_check(
            self.connection, self.shm.xcb_shm_detach_checked(self.connection, self.segment)
        )
        self.libc.free(failure)
        self.libc.shmdt(self.address)
        self.address = None

    def fetch(self) -> int:
        """Have the server write the screen as it is now, without the pointer, into the shared memory; returns its address."""
        address = self.address if self.address is not None else self.attach()
        cookie = self.shm.xcb_shm_get_image(
            self.connection, self.root, 0, 0, self.width, self.height, ALL_PLANES, Z_PIXMAP, self.segment, 0
        )
        reply = self.shm.xcb_shm_get_image_reply(self.connection, cookie, None)
        if not reply:
            raise GrabError("the X server gave no picture")
        self.libc.free(reply)
        return address

    def grab(self) -> Image.Image:
        """The screen now, as an RGB image of (width, height) pixels, without the pointer."""
        return pixels.picture(self.fetch(), self.width, self.height)

    def close(self) -> None:
        """Drop the connection."""
        self.xcb.xcb_disconnect(self.connection)
        if self.address is not None:
            self.libc.shmdt(self.address)
            self.address = None
