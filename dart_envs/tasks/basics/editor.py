"""placeholder"""

FAMILIES = ()
