"""What the bed and those who call it agree on."""

from __future__ import annotations

KEY = "AKIABED0000000000001"
SECRET = "bed/secret/of/nobody/0000000000000000001"
CONTROL = "/_bed/"
