"""The bundled suite `web`: pages in Chromium, served inside the desktop, on the image `desktop`.

Role: `WEB`, put together from one module per kind of thing. Rule: the verdict is what the server logged of the browser, or what the browser
itself saved; a request that some other program made is no deed. Non-goals: the internet; a policy that uses the desktop's root.
"""

from __future__ import annotations

from dart_envs.tasks.suite import Suite
from dart_envs.tasks.web import browser, forms, shop

WEB = Suite.from_families("web", (*forms.FAMILIES, *shop.FAMILIES, *browser.FAMILIES), image="desktop")
"""All bundled families."""
