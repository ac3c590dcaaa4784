"""The bundled suite `office`: everyday work in LibreOffice Calc, Writer and Impress on the image `desktop`.

Role: `OFFICE`, put together from one module per application. Rule: the verdict is what is in the saved document, read from outside; a file
that some other program wrote in its place scores only where it is the document that was asked for. Non-goals: macros, charts, printing.
"""

from __future__ import annotations

from dart_envs.tasks.office import calc, impress, writer
from dart_envs.tasks.suite import Suite

OFFICE = Suite.from_families("office", (*calc.FAMILIES, *writer.FAMILIES, *impress.FAMILIES), image="desktop")
"""All bundled families."""
