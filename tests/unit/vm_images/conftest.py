"""Makes the image builder and the guest agent importable: they are deployables, not installed packages."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3] / "vm_images"

for entry in (ROOT, ROOT / "guest"):
    if str(entry) not in sys.path:
        sys.path.insert(0, str(entry))
