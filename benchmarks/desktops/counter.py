"""A program for a desktop: paints an ever-growing number as a bar code over the whole height of the screen.

Role: started in the desktop (python-xlib only), read back by `desktops_frames`. Rule: each number is put on the screen by one request, so
no grab sees half of it; ends after `SECONDS`. Usage: `desktops_counter.py SECONDS PER_SECOND`.
"""

from __future__ import annotations

import sys
import time

from Xlib import X, display

BITS = 64
"""32 of the number, then the same 32 inverted."""
WIDTH_PX = 64
BLACK, WHITE = 0x000000, 0xFFFFFF


def main() -> int:
    """Paint until the time is over."""
    limit_s, per_second = float(sys.argv[1]), float(sys.argv[2])
    server = display.Display()
    screen = server.screen()
    height = screen.height_in_pixels
    window = screen.root.create_window(
        0, 0, WIDTH_PX, height, 0, screen.root_depth, background_pixel=BLACK, override_redirect=True
    )
    window.map()
    canvas = window.create_pixmap(WIDTH_PX, height, screen.root_depth)
    black, white = canvas.create_gc(foreground=BLACK), canvas.create_gc(foreground=WHITE)
    row = height // BITS
    end_s = time.monotonic() + limit_s
    number = 0
    while time.monotonic() < end_s:
        number += 1
        code = number | (~number & 0xFFFFFFFF) << 32
        canvas.poly_fill_rectangle(black, [(0, 0, WIDTH_PX, height)])
        canvas.poly_fill_rectangle(white, [(0, bit * row, WIDTH_PX, row) for bit in range(BITS) if code >> bit & 1])
        window.configure(stack_mode=X.Above)
        window.copy_area(white, canvas, 0, 0, WIDTH_PX, height, 0, 0)
        server.sync()
        time.sleep(1 / per_second)
    return 0


if __name__ == "__main__":
    sys.exit(main())
